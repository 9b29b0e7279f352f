-- The spans of ended turns, kept as long as their requests. Additive: an older
-- build goes on beside it and writes none.
CREATE TABLE request_traces (
    request_id TEXT PRIMARY KEY,
    trace      BLOB NOT NULL               -- JSON: {"spans":[…],"totals":{…}}
) WITHOUT ROWID;
