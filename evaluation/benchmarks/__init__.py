"""Benchmarks turn published files into questions. Each knows what its letters mean and where its evidence lies."""

from evaluation.benchmarks.base import Benchmark, FileBenchmark
from evaluation.benchmarks.bioasq import BioASQBenchmark, bioasq_passages
from evaluation.benchmarks.custom import JsonlBenchmark, OpenQABenchmark, StarterBenchmark
from evaluation.benchmarks.multiple_choice import MedMCQABenchmark, MedQABenchmark, MedXpertQABenchmark, MMLUBenchmark
from evaluation.benchmarks.yes_no_maybe import PubMedQABenchmark, pubmedqa_passages

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
