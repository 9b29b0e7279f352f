-- What tool servers offer, by the hash of their file: a restart asks none of them.
CREATE TABLE tool_lists (
    server   TEXT NOT NULL, -- its id, after the agent's and a slash when it is one agent's
    config   TEXT NOT NULL, -- hash of what decides which tools it has
    list     BLOB NOT NULL, -- JSON
    saved_at INTEGER NOT NULL, -- milliseconds since 1970
    PRIMARY KEY (server, config)
) STRICT;
