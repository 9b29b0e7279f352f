-- What the models that a version of the files declares answered when they were
-- last asked (llm/probe). Additive: an older build goes on beside it.
CREATE TABLE model_probes (
    version    TEXT    NOT NULL,           -- of the files
    model      TEXT    NOT NULL,           -- provider/model
    ability    TEXT    NOT NULL,           -- text, embedding, audio
    checked_at INTEGER NOT NULL,           -- milliseconds since 1970
    problem    TEXT    NOT NULL,           -- '' when it answered
    dimension  INTEGER NOT NULL,           -- of its vectors; 0 is unknown or none
    PRIMARY KEY (version, model, ability)
) WITHOUT ROWID;

-- The bytes of a file as it was sent: a limit of the agent that answers may be
-- lower than that of the door. 0 is unknown.
ALTER TABLE request_files ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
