"""Small corpora and files for the tests of retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reportlab.pdfgen.canvas import Canvas

from medagent.retrieval.chunking import Document
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.maintenance import verify_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Skipped, Withdrawn, read_documents

SMALL = HashedNgramEmbedder(64)

PASSAGES = [Passage.make(f"condition {i}", f"The first-line drug is agent{i}.", "test") for i in range(40)]

MEDLINE = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2024//EN"
 "https://dtd.nlm.nih.gov/ncbi/pubmed/out/pubmed_240101.dtd">
<PubmedArticleSet>
<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">101</PMID><Article>
<Journal><JournalIssue><PubDate><Year>2019</Year><Month>May</Month></PubDate></JournalIssue>
<Title>Journal of Gout</Title><ISOAbbreviation>J Gout</ISOAbbreviation></Journal>
<ArticleTitle>Colchicine for acute <i>gout</i>.</ArticleTitle>
<Abstract><AbstractText Label="BACKGROUND" NlmCategory="BACKGROUND">Gout hurts at night.</AbstractText>
<AbstractText Label="RESULTS">Colchicine 1.8 mg relieved pain (<i>P</i> &lt; 0.01).</AbstractText></Abstract>
<PublicationTypeList><PublicationType UI="D016428">Journal Article</PublicationType></PublicationTypeList>
</Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID Version="1">102</PMID><Article>
<Journal><JournalIssue><PubDate><MedlineDate>1998 Nov-Dec</MedlineDate></PubDate></JournalIssue>
<Title>Heart Notes</Title></Journal>
<ArticleTitle>[Digoxin in the elderly].</ArticleTitle>
<Abstract><AbstractText>Digoxin levels were measured.</AbstractText></Abstract>
</Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID Version="1">103</PMID><Article>
<ArticleTitle>No abstract here.</ArticleTitle></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID Version="1">104</PMID><Article>
<ArticleTitle>Withdrawn claims.</ArticleTitle><Abstract><AbstractText>This was wrong.</AbstractText></Abstract>
<PublicationTypeList><PublicationType UI="D016441">Retracted Publication</PublicationType></PublicationTypeList>
</Article></MedlineCitation></PubmedArticle>
<DeleteCitation><PMID Version="1">55</PMID></DeleteCitation>
</PubmedArticleSet>
"""

JATS = """<?xml version="1.0"?>
<article xmlns:xlink="http://www.w3.org/1999/xlink" article-type="research-article"><front>
<journal-meta><journal-title-group><journal-title>Open Renal</journal-title></journal-title-group></journal-meta>
<article-meta><article-id pub-id-type="pmid">777</article-id><article-id pub-id-type="pmc">PMC42</article-id>
<title-group><article-title>Nephrotic syndrome in <italic>children</italic></article-title></title-group>
<pub-date pub-type="epub"><year>2021</year></pub-date><pub-date pub-type="ppub"><year>2022</year></pub-date>
<permissions>
<license xlink:href="https://creativecommons.org/licenses/by/4.0/"><license-p>Open.</license-p></license></permissions>
<abstract><p>Steroids are given first.</p></abstract></article-meta></front>
<body><p>Opening words.</p><sec><title>Methods</title><p>We followed 40 children <xref ref-type="bibr">1</xref>.</p>
<sec><title>Dose</title><p>Prednisolone 60 mg/m2 [<xref>2</xref>, <xref>3</xref>] daily.</p>
<table-wrap><table><tr><td>cell</td></tr></table></table-wrap></sec></sec>
<sec><title>Results</title><p>Most children <bold>improved</bold>.</p></sec></body>
<back><ref-list><ref><mixed-citation>Someone 1999.</mixed-citation></ref></ref-list></back></article>
"""


class CountingEmbedder(HashedNgramEmbedder):
    """Counts what it embeds, and may stop part of the way."""

    def __init__(self, fail_after: int | None = None) -> None:
        super().__init__(64)
        self.embedded, self.fail_after = 0, fail_after

    def embed_passages(self, passages: Sequence[Passage]) -> np.ndarray:
        if self.fail_after is not None and self.embedded >= self.fail_after:
            raise KeyboardInterrupt
        self.embedded += len(passages)
        return super().embed_passages(passages)


def write_pdf(path: Path, line: str) -> None:
    """A PDF with a line of real text."""
    canvas = Canvas(str(path), invariant=1)
    canvas.drawString(50, 700, line)
    canvas.save()


def problems(folder: Path, embedder: HashedNgramEmbedder = SMALL) -> dict[str, str]:
    return {check.name: check.problem for check in verify_index(folder, embedder) if check.problem}


def fingerprint(folder: Path) -> tuple[str, str]:
    manifest = Manifest.read(folder)
    assert manifest.complete
    return manifest.content_sha256, manifest.embeddings_sha256


def items(path: Path) -> tuple[list[Document], list[Skipped | Withdrawn]]:
    found = list(read_documents(path))
    left_out = [item for item in found if isinstance(item, Skipped | Withdrawn)]
    return [item for item in found if isinstance(item, Document)], left_out


def read(tmp_path: Path, name: str, content: str | bytes) -> tuple[list[Document], list[Skipped | Withdrawn]]:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return items(path)


def texts(documents: list[Document]) -> list[list[tuple[str, str]]]:
    return [[(section.heading, section.text) for section in document.sections] for document in documents]
