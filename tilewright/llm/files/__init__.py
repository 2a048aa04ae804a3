"""Files of language models: GGUF, folders of Hugging Face, and the checkpoint of stories260K."""
