"""Text to tokens and back: tokenizers, chat templates and the text of an answer."""
