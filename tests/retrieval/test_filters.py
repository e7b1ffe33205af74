"""One grammar of filters: what it means, what it refuses, and that every door takes it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from medagent.cli.main import main
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import IndexMismatchError, RetrievalError
from medagent.retrieval.filters import Filter, FilterCondition, date_fits
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.tool_calls import ToolCall, ToolResult
from medagent.tools.base import CallContext, run_calls
from medagent.tools.corpus import SEARCH
from tests.retrieval.server import Serving

ROWS = {
    "guideline": Bibliography(types=("Practice Guideline",), language="eng", date="2021-03-05", journal="Gut"),
    "review": Bibliography(types=("Systematic Review", "Journal Article"), language="English", date="2019"),
    "trial": Bibliography(types=("Clinical Trial, Phase III",), language="ger", authors=("Müller J", "Ng A")),
    "case": Bibliography(types=("case-report",), language="pt-BR", keywords=("Behçet Syndrome", "Humans")),
    "plain": Bibliography(),
}
PASSAGES = [
    Passage.make(f"Gout {name}", f"Gout is treated, says {name}.", source, id=name, year=year, about=ROWS[name])
    for name, source, year in [
        ("guideline", "WHO", 2021),
        ("review", "Genetics Home Reference", 2019),
        ("trial", "PubMed?", 2015),
        ("case", "PubMed: Gut", 2020),
        ("plain", "who", None),
    ]
]
EVERY = {passage.id for passage in PASSAGES}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters") / "index"
    build_index(PASSAGES, folder, HashedNgramEmbedder(64))
    return folder


def ids(retriever: HybridRetriever | RemoteRetriever, where: str) -> set[str]:
    return {hit.passage.id for hit in retriever.search_where(["gout"], top_k=9, where=Filter.parse(where))[0]}


def test_what_a_filter_lets_through(index: Path) -> None:
    cases = {
        "guideline": "date>=2021-03; date=2021; type=guideline; journal=gut year>=2021",
        "case": "year > 2019 year < 2021; language=pt; keyword='behcet syndrome'",
        "trial": "language=Deutsch; source=PubMed?; author=muller*",
        "review": 'type=systematic-review; source="Genetics Home Reference"',
        "guideline case": "year>=2020",
        "review trial": "year=2015,2019; date<2020-06",  # the month of 2020 is not known
        "guideline review": "language=en",
        "guideline trial": "type=trial,guideline",
        "trial case": "source=PubMed*",
        "guideline plain": "source=who",
        "guideline plain trial": "source = WHO , 'PubMed?'",
        "trial case plain": "language!=en",
        "review trial case plain": "year!=2021; date!=2021-03",
        "guideline review trial plain": "type!=case-report",
        "plain": "document=plain",
        "": "type=rct; source=nobody",
    }
    retriever = HybridRetriever(str(index))
    for found, filters in (cases | {" ".join(EVERY): ""}).items():
        for where in filters.split("; "):
            assert ids(retriever, where) == set(found.split()), where
            assert Filter.parse(str(Filter.parse(where))) == Filter.parse(where), "it is read back as it is written"


@pytest.mark.parametrize(
    ("stored", "where"),
    [
        (Bibliography(keywords=("*Asthma/drug therapy",)), "keyword=asthma"),
        (Bibliography(keywords=("*Asthma/drug therapy",)), "keyword='*asthma/drug therapy'"),
        (Bibliography(language="eng; fre"), "language=fr"),
        (Bibliography(types=("Randomized Controlled Trial",)), "type=rct"),
        (Bibliography(doi="10.1000/abc"), "doi=https://doi.org/10.1000/ABC"),
        (Bibliography(authors=("Sørensen K",)), "author=Sorensen*"),
        (Bibliography(authors=("Łukasz P", "O’Brien T")), "author=lukasz* author=O'Brien*"),
        (Bibliography(date="2021-03-05"), "date>=2021-03 date<=2021-03 date=2021"),
        (Bibliography(pmid="77"), "pmid=" + ",".join(map(str, range(1500)))),
        (Bibliography(journal='The "Gut"'), Filter((FilterCondition("journal", "=", ('The "Gut"',)),))),
    ],
    ids=str,
)
def test_what_libraries_store_is_met(tmp_path: Path, stored: Bibliography, where: str | Filter) -> None:
    passages = [Passage.make("Gout", "One.", id="met", about=stored), Passage.make("Gout", "Two.", id="other")]
    build_index(passages, tmp_path, HashedNgramEmbedder(64))
    assert ids(HybridRetriever(str(tmp_path)), str(where)) == {"met"}


def test_dates_are_compared_as_far_as_both_say_them() -> None:
    for operator in ("<", "<=", "=", ">=", ">"):
        assert not date_fits("2021", operator, "2021-03"), "it may be any month"
        assert not date_fits("spring", operator, "2021")
    fitting = [each for each in ("<", "<=", "=", ">=", ">") if date_fits("2021-03-05", each, "2021-03")]
    assert fitting == ["<=", "=", ">="]
    assert date_fits("2021///Spring", ">=", "2021")
    assert not date_fits("2021///Spring", ">=", "2021-03")


def test_a_filter_of_ones_own_holds_for_what_is_said_of_the_corpus(index: Path) -> None:
    limited = HybridRetriever(str(index), where="year>=2020")
    assert (set(limited.sources(limit=9)), limited.num_sources()) == ({"WHO", "PubMed: Gut"}, 2)
    assert limited.years() == (2020, 2021)
    dense, lexical = limited.rankings(["gout"], num_candidates=9)
    assert {len(dense[0]), len(lexical[0])} == {2}


def test_what_is_no_filter_is_refused(index: Path) -> None:
    wrong = {"yaer>=2020": "found the field 'yaer', wanted one of source, year", "year": "no condition"}
    wrong |= dict.fromkeys(("year>=", "source=WHO,", "source='WHO"), "empty value")
    wrong |= {"year>=new": "wanted a year", "year>=2020,2021": "one value", "source>=WHO": "other fields take = and !="}
    wrong |= {
        "date>=March": "wanted a date",
        "date>=2021-02-31": "wanted a date",
        "author=a*b*c*d*e*f*g*": "more than 5",
    }
    many = ("pmid=" + ",".join(map(str, range(2001))), " ".join(["author=a*"] * 21), " ".join(["year>=2000"] * 51))
    for where, said in (wrong | dict.fromkeys(many, "at most 50, 2,000 and 20")).items():
        with pytest.raises(RetrievalError, match=said):
            HybridRetriever(str(index), where=where)


def test_a_retriever_keeps_its_own_filter(index: Path) -> None:
    retriever = HybridRetriever(str(index), where="year>=2019")
    assert ids(retriever, "") == {"guideline", "review", "case"}
    assert ids(retriever, "language=en") == {"guideline", "review"}
    assert {hit.passage.id for hit in retriever.search(["gout"], top_k=9)[0]} == {"guideline", "review", "case"}
    with pytest.raises(IndexMismatchError, match="no passage fits the filter year>=2050"):
        HybridRetriever(str(index), where="year>=2050")


def test_over_http_it_is_the_same(index: Path) -> None:
    served = Serving(index)
    try:
        asked = {"queries": ["gout"], "top_k": 9}
        for where in ("type=guideline language=en", "year!=2021"):
            assert ids(RemoteRetriever(served.url), where) == ids(HybridRetriever(str(index)), where)
        assert ids(RemoteRetriever(served.url, where="year>=2020"), "language=en") == {"guideline"}
        odd = ({"sources": [" "]}, {"sources": [""]}, {"year_from": 10**10})
        for wrong in ("yaer>=2020", {"year": 2020}, {"source": ["WHO"]}, 5, *odd):
            answer = httpx.post(f"{served.url}/search", json={**asked, "where": wrong})
            assert answer.status_code == 422, wrong
    finally:
        served.stop()


def test_a_search_that_a_model_calls_takes_a_filter(index: Path) -> None:
    def found(retriever: HybridRetriever | UnreliableRetriever, **more: object) -> ToolResult:
        batcher = SearchBatcher(retriever, top_k=9)
        call = ToolCall("search", {"query": "gout", **more})
        return asyncio.run(run_calls([call], [SEARCH], CallContext(batcher.search, batcher)))[0]

    local = HybridRetriever(str(index))
    for retriever in (local, UnreliableRetriever(local, share=0.0)):
        assert [hit.passage.id for hit in found(retriever, where="type=trial").hits] == ["trial"]
        assert len(found(retriever, top_k=2).hits) == 2
    assert "wanted one of source, year" in found(local, where="colour=red").error


def test_searches_within_a_filter_have_both(index: Path) -> None:
    async def found() -> set[str]:
        batcher = SearchBatcher(HybridRetriever(str(index)), top_k=9).within(Filter.parse("language=en"))
        hits = await batcher.search("gout", where=Filter.parse("year>=2020"))
        assert batcher.waiting == 0
        return {hit.passage.id for hit in hits}

    assert asyncio.run(found()) == {"guideline"}


def test_on_the_command_line(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["search", "gout", "--index", str(index), "--where", "type=guideline,trial", "--year_from", "2020", "--json"])
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["guideline"]
    main(["search", "gout", "--index", str(index), "--where", "source=nobody"])
    assert "Nothing found. The filter was: source=nobody" in capsys.readouterr().out
    assert main(["search", "gout", "--index", str(index), "--source", "GARD"]) == 0, "one source needs no list"
    assert "Nothing found" in capsys.readouterr().out
    for query, where, said in (("gout", "yaer=2020", "found the field 'yaer'"), (" ", "", "query is empty")):
        assert main(["search", query, "--index", str(index), "--where", where]) == 1
        assert said in capsys.readouterr().err
