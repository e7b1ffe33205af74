"""Benchmarks turn published files into questions. Each knows what its letters mean and where its evidence lies."""

from medagent.evaluation.benchmarks.base import Benchmark as Benchmark
from medagent.evaluation.benchmarks.base import FileBenchmark as FileBenchmark
from medagent.evaluation.benchmarks.custom import JsonlBenchmark as JsonlBenchmark
from medagent.evaluation.benchmarks.custom import OpenQABenchmark as OpenQABenchmark
from medagent.evaluation.benchmarks.custom import StarterBenchmark as StarterBenchmark
from medagent.evaluation.benchmarks.literature import BioASQBenchmark as BioASQBenchmark
from medagent.evaluation.benchmarks.literature import PubMedQABenchmark as PubMedQABenchmark
from medagent.evaluation.benchmarks.literature import bioasq_passages as bioasq_passages
from medagent.evaluation.benchmarks.literature import pubmedqa_passages as pubmedqa_passages
from medagent.evaluation.benchmarks.multiple_choice import MedMCQABenchmark as MedMCQABenchmark
from medagent.evaluation.benchmarks.multiple_choice import MedQABenchmark as MedQABenchmark
from medagent.evaluation.benchmarks.multiple_choice import MedXpertQABenchmark as MedXpertQABenchmark
from medagent.evaluation.benchmarks.multiple_choice import MMLUBenchmark as MMLUBenchmark
