"""What a corpus says of an answer, judged by the program: its subject, its words, its option and its doses."""
