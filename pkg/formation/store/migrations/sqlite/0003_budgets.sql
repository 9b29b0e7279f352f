-- What model calls used, by hour, request and model (llm/budget). Additive: an
-- older build goes on beside it.
CREATE TABLE model_usage (
    hour       INTEGER NOT NULL,           -- since 1970
    request_id TEXT    NOT NULL,           -- '' when no turn asked for it
    agent_id   TEXT    NOT NULL,           -- '' is the overlord
    user_id    TEXT    NOT NULL,
    model      TEXT    NOT NULL,           -- provider/model
    calls      INTEGER NOT NULL,
    input      INTEGER NOT NULL,           -- tokens, the cached ones included
    output     INTEGER NOT NULL,
    cached     INTEGER NOT NULL,
    amount     INTEGER NOT NULL,           -- billionths of the currency
    unpriced   INTEGER NOT NULL,           -- calls without a price
    PRIMARY KEY (hour, request_id, agent_id, user_id, model)
) WITHOUT ROWID;

-- What each limited scope has used on a day of UTC, and what calls in progress
-- have reserved there.
CREATE TABLE budgets (
    scope       TEXT    NOT NULL,          -- formation, agent, user
    id          TEXT    NOT NULL,
    day         INTEGER NOT NULL,          -- since 1970
    tokens      INTEGER NOT NULL DEFAULT 0,
    amount      INTEGER NOT NULL DEFAULT 0,
    held_tokens INTEGER NOT NULL DEFAULT 0,
    held_amount INTEGER NOT NULL DEFAULT 0,
    warned      INTEGER NOT NULL DEFAULT 0, -- bits: 1 tokens, 2 amount
    PRIMARY KEY (scope, id, day)
) WITHOUT ROWID;

-- Calls in progress. Those of a fenced launch are given up by the next call
-- that finds no room.
CREATE TABLE reservations (
    id         INTEGER PRIMARY KEY,
    launch_id  TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    request_id TEXT    NOT NULL,
    agent_id   TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    model      TEXT    NOT NULL,
    prompt     INTEGER NOT NULL,           -- tokens, estimated
    tokens     INTEGER NOT NULL,
    amount     INTEGER NOT NULL
);
CREATE INDEX reservations_launch ON reservations (launch_id);
