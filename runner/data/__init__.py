"""Rows to Parquet: a kind of data is one module, with a frozen dataclass of its settings and `prepare`, which takes it."""

# Who prepares the kinds of data that several scenarios may name; a scenario's own stand in its folder.
PREPARERS = {
    "chat": "runner.data.chat",
    "lyrics": "runner.data.lyrics",
    "plain-text": "runner.data.plain_text",
}
