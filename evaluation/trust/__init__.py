"""What a person risks who believes an answer: injections, unsupported claims, citations that do not support."""
