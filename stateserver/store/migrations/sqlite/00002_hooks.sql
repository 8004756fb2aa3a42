-- +goose Up
-- How far a hook was told of the messages of a node. A row is there while the node's ids are drawn by a process that has
-- the hook, and after it until everything was told. lease_until is in ms of the database host's clock.
CREATE TABLE im_hook (
    hook        TEXT    NOT NULL,
    node_id     INTEGER NOT NULL,
    told        INTEGER NOT NULL,
    owner       TEXT    NOT NULL,
    lease_until INTEGER NOT NULL,
    PRIMARY KEY (hook, node_id)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE im_hook;
