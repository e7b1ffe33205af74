"""The terminal's view of a question: its turns, passages and cited answer. Model and passage text stays plain text."""

from rich.console import Console

from medagent.cli.safe_text import escape
from medagent.evidence.answers import Answer, Steps
from medagent.evidence.extracts import ALSO
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.serving.openai_form import called, source_line
from medagent.types import Question, Turn


def show_question(console: Console, question: Question) -> None:
    """Print the question and its options."""
    console.print(f"[bold]{escape(question.text)}[/bold]")
    for letter, option in zip(question.letters, question.options, strict=True):
        console.print(f"  ({letter}) {escape(option)}")


class TurnPrinter:
    """Prints turns as they end, as `Steps` tells them."""

    def __init__(self, console: Console, protocol: TurnProtocol, retriever: Retriever) -> None:
        self._console, self._tell = console, Steps(protocol, retriever)

    def __call__(self, turn: Turn) -> None:
        """Print one turn."""
        told = self._tell(turn)
        if told["thought"]:
            self._console.print(f"  [dim]thinks[/dim]   {escape(told['thought'])}")
        if turn.query is not None:
            self._console.print(f"  [cyan]searches[/cyan] {escape(turn.query)}")
        for call in told["calls"]:
            self._console.print(f"  [cyan]calls[/cyan]    {escape(called(call))}")
        for word, near in told["replaced"].items():
            self._console.print(f"     [dim]no passage has {escape(word)!r}, so for {escape(', '.join(near))}[/dim]")
        for shown, hit in zip(told["passages"], turn.hits, strict=True):
            text = hit.passage.shown_text
            text = escape(text if len(text) <= 300 else text[:297] + "...")
            self._console.print(f"     [dim]\\[{shown['number']}][/dim] {text}")
        if turn.query is None and turn.answer is None and not turn.calls:
            self._console.print(f"  [yellow]neither searches nor answers:[/yellow] {escape(turn.text)}")


def show_answer(console: Console, answer: Answer) -> None:
    """Print the answer under the verdict of the evidence, and the sentence nearest to it of each passage it cites."""
    if answer.urgent:
        console.print(f"  [bold red]{escape(answer.urgent)}[/bold red]")
    if answer.caption:
        console.print(f"  [dim]{answer.caption}[/dim]")
    if answer.withheld:
        console.print(f"  [yellow]no answer[/yellow] {escape(answer.text)}")
    else:
        console.print(f"  [green]answers[/green]  [bold]{escape(answer.text)}[/bold]")
        console.print(f"  [dim]evidence[/dim] {escape(answer.verdict.text)}")
        for cited in answer.citations:
            named = f"{cited.passage.heading} ({cited.id})" if cited.passage.heading else cited.id
            console.print(f"     [dim]source \\[{cited.number}][/dim] {escape(named)}")
            console.print(f"        [italic]{escape(cited.quote)}[/italic]")
        if answer.removed_citations:
            console.print(
                f"     [dim]removed citations of passages that were not shown: {answer.removed_citations}[/dim]"
            )
    for title, quotes in ((answer.quoted_as, answer.quoted), (ALSO, answer.also)):
        if quotes:
            console.print(f"  [cyan]{title}[/cyan]")
        for quote in quotes:
            only = f"only for {escape(quote.scope)}: " if quote.scope else ""
            console.print(f"     {only}[italic]\u201c{escape(quote.text)}\u201d[/italic]")
            console.print(f"        [dim]{escape(source_line(quote.passage.to_json()))}[/dim]")
    console.print(f"  [dim]{NOT_ADVICE}[/dim]")
