"""The server of `tilewright serve`: HTTP in OpenAI's form, a batch of requests on one model, and a chat page."""
