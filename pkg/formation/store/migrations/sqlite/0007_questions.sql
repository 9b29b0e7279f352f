-- The one question of a session that waits for its answer, and how a request
-- says that it was answered by a click. Additive: an older build goes on beside
-- it, and leaves a question alone.
ALTER TABLE sessions ADD COLUMN question TEXT;     -- JSON; NULL when none waits
ALTER TABLE sessions ADD COLUMN asked_at INTEGER;  -- set with it
CREATE INDEX sessions_asked ON sessions (asked_at) WHERE asked_at IS NOT NULL;

-- JSON of the choice made in a widget. A request that waits for an answer has
-- the status awaiting_clarification and no launch: nobody works on it.
ALTER TABLE requests ADD COLUMN click TEXT;
CREATE INDEX requests_waiting ON requests (user_id, session_id) WHERE status = 'awaiting_clarification';
