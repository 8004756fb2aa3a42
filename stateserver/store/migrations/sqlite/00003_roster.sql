-- +goose Up
-- Grows with each change of a group's members, so that who stores a message knows that it goes to those who are in.
ALTER TABLE im_conversation ADD COLUMN roster INTEGER NOT NULL DEFAULT 1;

-- +goose Down
ALTER TABLE im_conversation DROP COLUMN roster;
