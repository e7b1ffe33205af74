"""A medical search agent: load one and ask it, train one, measure it, serve it.

>>> import medagent                                                         # doctest: +SKIP
>>> with medagent.load_agent("runs/demo/agent") as agent:                   # doctest: +SKIP
...     answer = agent.answer("What is the first-line drug for trachoma?")
>>> answer.text, answer.verdict, answer.citations, answer.searches          # doctest: +SKIP
>>> medagent.retrieval.build_index, medagent.evaluation.evaluate, medagent.training.train        # doctest: +SKIP

Names and subpackages are imported when they are first used, so `import medagent` loads no torch.
"""

from typing import TYPE_CHECKING

from medagent.lazy import homes_in, lazy

if TYPE_CHECKING:
    from medagent import evaluation, retrieval, training
    from medagent.agent import Agent, Job
    from medagent.api import LoadedAgent, load_agent
    from medagent.errors import MedagentError
    from medagent.evidence.answers import Answer, Citation, SearchStep
    from medagent.types import Limits, Question

__all__ = [
    "Agent",
    "Answer",
    "Citation",
    "Job",
    "Limits",
    "LoadedAgent",
    "MedagentError",
    "Question",
    "SearchStep",
    "evaluation",
    "load_agent",
    "retrieval",
    "training",
]

__getattr__, __dir__ = lazy(__name__, homes_in(__name__, __file__))
