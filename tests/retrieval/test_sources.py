"""What hospitals' sources hold: drug labels, registries, converted articles, lists of retractions."""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.readers import LeftOut, read_documents
from tests.retrieval.support import read, texts


def spl(body: str, *, head: str = "") -> str:
    return (
        '<?xml version="1.0"?><document xmlns="urn:hl7-org:v3"><id root="d"/><title>DEMOXETINE<br/> tablets</title>'
        '<effectiveTime value="20240315"/><setId root="AB-1"/><versionNumber value="12"/><author><assignedEntity>'
        f"<representedOrganization><name>Demo Pharma</name></representedOrganization></assignedEntity></author>{head}"
        f"<component><structuredBody>{body}</structuredBody></component></document>"
    )


def section(title: str, text: str, *, code: str = "", name: str = "", inside: str = "") -> str:
    titled, inner = (f"<title>{title}</title>" if title else ""), (f"<component>{inside}</component>" if inside else "")
    code = f'<id root="c"/><code code="{code}" displayName="{name}"/>'
    return f"<component><section>{code}{titled}<text>{text}</text>{inner}</section></component>"


def test_a_drug_label_of_dailymed(tmp_path: Path) -> None:
    table = (
        "<table><caption>Table 1. Doses</caption><thead><tr><th>CrCl</th><th>Dose</th></tr></thead><tfoot><tr>"
        '<td colspan="2">Not in dialysis.</td></tr></tfoot><tbody><tr><td rowspan="2">30 to 60</td><td>100 mg</td></tr>'
        "<tr><td>50 mg<footnote>if frail</footnote></td></tr></tbody></table>"
    )
    below = "<paragraph>Below 1 x 10<sup>9</sup>/L stop.</paragraph>"
    adults = f"<section><title>2.1 Adults</title><text>{below}{table}</text></section>"
    changed = (
        '<paragraph>Give <content styleCode="xmChange">5 mg</content> '
        '<content styleCode="strikethrough">50 mg</content>daily.<renderMultiMedia referencedObject="MM1"/></paragraph>'
        "<list><item><caption>a)</caption>With food</item></list>"
    )
    ingredient = (
        '<ingredient classCode="{}"><quantity><numerator value="{}" unit="mg"/><denominator value="{}" unit="{}"/>'
        "</quantity><ingredientSubstance><name>{}</name></ingredientSubstance></ingredient>"
    )
    product = (
        "<subject><manufacturedProduct><manufacturedProduct><name>Demo</name><formCode displayName='SOLUTION'/>"
        + ingredient.format("ACTIB", 20, 5, "mL", "DEMOXETINE")
        + re.sub("<quantity>.*</quantity>", "", ingredient.format("IACT", 1, 1, 1, "LACTOSE"))
        + "</manufacturedProduct></manufacturedProduct></subject>"
    )
    body = (
        f"<component><section><code code='48780-1' displayName='SPL product data'/>{product}</section></component>"
        + section("2 DOSAGE", changed, inside=adults)
        + section("", "<paragraph>Liver failure.</paragraph>", code="34066-1", name="BOXED WARNING SECTION")
    )
    (tmp_path / "a.xml").write_text(spl(body, head="<relatedDocument><setId root='other'/></relatedDocument>"))
    document, left_out = read_documents(tmp_path / "a.xml")
    assert texts([document]) == [  # type: ignore[list-item]
        [
            ("Boxed warning section", "Liver failure."),
            ("2 DOSAGE", "Give 5 mg daily.\na) With food"),
            ("2 DOSAGE > 2.1 Adults", "Below 1 x 10^9/L stop."),
            (
                "2 DOSAGE > 2.1 Adults > Table 1. Doses",
                "CrCl: 30 to 60; Dose: 100 mg\nCrCl: 30 to 60; Dose: 50 mg (if frail)\nNot in dialysis.",
            ),
            ("Products", "Demo, SOLUTION: DEMOXETINE 20 mg in 5 mL; inactive: LACTOSE"),
        ]
    ]
    assert (document.title, document.id, document.year, document.source) == (  # type: ignore[union-attr]
        "DEMOXETINE tablets",
        "setid:ab-1",
        2024,
        "DailyMed",
    )
    assert document.about == Bibliography(  # type: ignore[union-attr]
        url="https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid=ab-1",
        authors=("Demo Pharma",),
        journal="DailyMed",
        date="2024-03-15",
        types=("Drug Label",),
    )
    assert left_out == LeftOut("a.xml, setid:ab-1", "1 struck-out text")


def test_bold_cells_name_the_columns_of_a_labels_table(tmp_path: Path) -> None:
    bold = '<td><content styleCode="bold">{}</content></td>'
    rows = "<tr><td>child</td><td>by weight</td></tr><tr><td>adult</td><td>fixed</td></tr>"
    table = f"<table><tbody><tr>{bold.format('Patient')}{bold.format('Dose')}</tr>{rows}</tbody></table>"
    (document,), _ = read(tmp_path, "a.xml", spl(section("DOSE", table)))
    assert document.sections[0].text == "Patient: child; Dose: by weight\nPatient: adult; Dose: fixed"


def test_versions_of_labels_sort_as_numbers(tmp_path: Path) -> None:
    body = section("USE", "<paragraph>For pain.</paragraph>")
    (older,), _ = read(tmp_path, "a.xml", spl(body).replace('value="12"', 'value="9"'))
    (newer,), _ = read(tmp_path, "b.xml", spl(body))
    assert older.version < newer.version


def test_a_document_that_is_no_label_is_told(tmp_path: Path) -> None:
    documents, (skipped,) = read(tmp_path, "a.xml", "<document><p>x</p></document>")
    assert (documents, skipped.reason) == ([], "is no drug label: its <document> has no <setId>")
    documents, (skipped,) = read(tmp_path, "b.xml", "<drugs/>")
    assert "root is <drugs>" in skipped.reason
    for name in ("PubmedArticleSet", "DailyMed", "TEI", "BioC"):
        assert name in skipped.reason


TEI = """<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader xml:lang="en"><fileDesc><titleStmt><title level="a"
type="main">Demograbin in gout</title></titleStmt><sourceDesc><biblStruct><analytic><author><persName>
<forename type="first">Ann</forename><surname>Roe</surname></persName><idno type="ORCID">0</idno></author></analytic>
<monogr><title level="j">J Ex</title><imprint><date type="published" when="2021-05-04"/></imprint></monogr>
<idno type="MD5">F</idno><idno type="DOI">10.9999/TEI.1</idno></biblStruct></sourceDesc></fileDesc><profileDesc>
<abstract><div><p>It helped.</p></div></abstract></profileDesc></teiHeader><text><body>
<div><head n="2">Methods</head><p>We gave <hi rend="strikethrough">9</hi> 5 mg <ref type="bibr">[1]</ref>,
<ref type="bibr">[2]</ref> at 10<hi rend="superscript">9</hi>/L<ref type="foot">1</ref>.</p>
<formula>a = b</formula></div>
<figure type="table"><head>Table 1</head><label>1</label><figDesc>Doses</figDesc><table><row><cell>Drug</cell>
<cell cols="2">Dose</cell></row><row><cell>demograbin</cell><cell>5 mg</cell><cell>daily</cell></row></table>
<note>Never 9 mg.</note></figure>
<figure><head>Figure 1</head><label>1</label><figDesc>Pain fell.</figDesc></figure>
<note place="foot" n="1">Not in pregnancy.</note></body>
<back><div type="acknowledgement"><p>Thanks.</p></div><div type="annex"><head>Annex</head><p>More.</p></div>
<div type="references"><listBibl><biblStruct><title>Old work</title></biblStruct></listBibl></div>
</back></text></TEI>"""


def test_an_article_in_tei(tmp_path: Path) -> None:
    for content in (TEI, f'<teiCorpus xmlns="http://www.tei-c.org/ns/1.0">{TEI}</teiCorpus>'):
        (tmp_path / "a.xml").write_text(content)
        document, left_out = read_documents(tmp_path / "a.xml")
        assert texts([document]) == [  # type: ignore[list-item]
            [
                ("Abstract", "It helped."),
                ("", "Figure 1\nPain fell.\nNot in pregnancy."),
                ("2 Methods", "We gave 5 mg at 10^9/L."),
                ("Table 1. Doses", "Drug: demograbin; Dose: 5 mg; Dose: daily\nNever 9 mg."),
                ("Annex", "More."),
            ]
        ]
        assert (document.title, document.id, document.year) == (  # type: ignore[union-attr]
            "Demograbin in gout",
            "doi:10.9999/tei.1",
            2021,
        )
        assert document.about == Bibliography(  # type: ignore[union-attr]
            doi="10.9999/tei.1", authors=("Roe Ann",), journal="J Ex", date="2021-05-04", language="en"
        )
        assert left_out == LeftOut("a.xml, doi:10.9999/tei.1", "1 formula, 1 struck-out text")


def passage(text: str, **infons: str) -> str:
    said = "".join(f'<infon key="{key.replace("__", "-")}">{value}</infon>' for key, value in infons.items())
    return f"<passage>{said}<offset>0</offset><text>{text}</text></passage>"


BIOC = (
    "<collection><source>PMC</source><date/><key/><document><id>PMC77</id>"
    + passage(
        "On gout", section_type="TITLE", type="front", article__id_pmc="77", article__id_pmid="7", year="2020",
        name_1="surname:Doe;given-names:Bo", name_0="surname:Roe;given-names:Ann",
    )
    + passage("Background", section_type="ABSTRACT", type="abstract_title_1")
    + passage("It hurts &lt; 5.", section_type="ABSTRACT", type="abstract")
    + passage("Treatment", section_type="METHODS", type="title_1")
    + passage("Dose", section_type="METHODS", type="title_2")
    + passage("Give 5 mg.", section_type="METHODS", type="paragraph")
    + passage("Doses", section_type="TABLE", type="table_caption")
    + passage(
        "Drug\tDose\t \tfictolol\t5 mg\t \t", section_type="TABLE", type="table",
        xml=escape(
            "<table><thead><tr><th>Drug</th><th>Dose</th></tr></thead><tbody><tr><td>fictolol</td><td>5 mg</td></tr>"
            "</tbody></table>"
        ),
    )
    + passage("Not in pregnancy.", section_type="TABLE", type="table_footnote")
    + passage("Sums", section_type="TABLE", type="table_caption")
    + passage("Drug\tDose\t \tfictase\t1 g\t \t", section_type="TABLE", type="table")
    + passage("References", section_type="REF", type="title")
    + passage("Old work", section_type="REF", type="ref")
    + "</document></collection>"
)  # fmt: skip


def test_articles_in_bioc(tmp_path: Path) -> None:
    (document,), skipped = read(tmp_path, "a.xml", BIOC)
    assert not skipped
    assert texts([document]) == [
        [
            ("Background", "It hurts < 5."),
            ("Treatment > Dose", "Give 5 mg."),
            ("Doses", "Drug: fictolol; Dose: 5 mg\nNot in pregnancy."),
            ("Sums", "Drug: fictase; Dose: 1 g"),
        ]
    ]
    assert (document.title, document.id, document.aliases, document.year) == ("On gout", "pmc:77", ("pmid:7",), 2020)
    assert document.about.authors == ("Roe Ann", "Doe Bo")
    pubtator = (
        "<collection><source>PubTator</source><document><id>8</id>"
        + passage("Short", type="title")
        + passage("It hurts.", type="abstract")
        + "</document></collection>"
    )
    (document,), _ = read(tmp_path, "b.xml", pubtator)
    assert (document.title, document.id, texts([document])) == ("Short", "pmid:8", [[("Abstract", "It hurts.")]])


def test_numbers_that_json_has_not_lose_no_row(tmp_path: Path) -> None:
    array = '[{"id":"1","text":"5 mg"},{"id":"2","text":"6 mg","score":NaN},{"id":"3","text":"7 mg","x":-Infinity}]'
    for content in (array, f'{{"rows": {array}}}'):
        documents, found = read(tmp_path, "a.json", content)
        assert [each.id for each in documents] == ["1", "2", "3"]
        assert not found
    documents, found = read(tmp_path, "b.json", array[:-1])
    assert found, "a file that is cut off is told"


def test_what_is_no_doi_names_nothing_and_a_float_is_a_pmid(tmp_path: Path) -> None:
    content = "doi,pmid,title,text\nnan,123.0,T,5 mg\nN/A,,U,6 mg\nhttps://doi.org/10.1/X,,V,7 mg\n"
    documents, _ = read(tmp_path, "a.csv", content)
    assert [each.id for each in documents] == ["pmid:123", "", "doi:10.1/x"]
    assert [each.about.link for each in documents[1:]] == ["", "https://doi.org/10.1/x"]
