-- What a user chose for a session goes with the session, whoever deletes it.
-- Additive: an older build goes on beside it.
CREATE TRIGGER credential_choices_of_session AFTER DELETE ON sessions BEGIN
    DELETE FROM credential_choices WHERE user_id = old.user_id AND session_id = old.session_id;
END;
