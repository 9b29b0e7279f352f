-- The files of open requests, ready for models, so that a resumed turn has them.
-- They go with the end of their request. Additive: an older build goes on beside
-- it.
CREATE TABLE request_files (
    request_id TEXT    NOT NULL,
    position   INTEGER NOT NULL,           -- from 0, as they were sent
    kind       TEXT    NOT NULL,           -- image, audio, video, document
    media_type TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    spoken     INTEGER NOT NULL,           -- 1: its words are the message
    cut        INTEGER NOT NULL,           -- 1: the document has more text
    text       TEXT    NOT NULL,           -- of a document
    data       BLOB,                       -- NULL where the text says it all
    UNIQUE (request_id, position)
);
