"""Benchmarks turn published files into questions; each knows what its letters mean and where its evidence lies."""

from evaluation.benchmarks.base import Benchmark, FileBenchmark
from evaluation.benchmarks.choice import MedMCQABenchmark, MedQABenchmark, MedXpertQABenchmark, MMLUBenchmark
from evaluation.benchmarks.decision import BioASQBenchmark, PubMedQABenchmark, bioasq_passages, pubmedqa_passages
from evaluation.benchmarks.own import JsonlBenchmark, OpenQABenchmark, StarterBenchmark

__all__ = [
    "Benchmark",
    "BioASQBenchmark",
    "FileBenchmark",
    "JsonlBenchmark",
    "MMLUBenchmark",
    "MedMCQABenchmark",
    "MedQABenchmark",
    "MedXpertQABenchmark",
    "OpenQABenchmark",
    "PubMedQABenchmark",
    "StarterBenchmark",
    "bioasq_passages",
    "pubmedqa_passages",
]
