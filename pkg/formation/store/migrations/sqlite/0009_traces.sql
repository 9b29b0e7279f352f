-- The spans of ended turns, kept as long as their requests and in their order.
-- Additive: an older build goes on beside it and writes none.
CREATE TABLE request_traces (
    rid   INTEGER PRIMARY KEY,             -- of the request
    trace BLOB NOT NULL                    -- JSON: {"spans":[…],"totals":{…}}
);
