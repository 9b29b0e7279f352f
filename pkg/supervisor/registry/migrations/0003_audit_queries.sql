-- Who did what, newest first, without reading the whole chain.
CREATE INDEX audit_by_actor ON audit (actor, seq);
CREATE INDEX audit_by_action ON audit (action, seq);
