"""The risks of believing an answer: injections, unsupported claims, citations that do not support."""
