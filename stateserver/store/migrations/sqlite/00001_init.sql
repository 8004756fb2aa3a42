-- +goose Up
-- msg_id is the rowid: ids grow with time, so rows are appended at the right edge of the tree.
CREATE TABLE im_message (
    msg_id        INTEGER PRIMARY KEY,
    conv_id       TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    from_uid      TEXT    NOT NULL,
    client_msg_id TEXT    NOT NULL,
    msg_type      INTEGER NOT NULL,
    content       TEXT    NOT NULL,
    body          BLOB    NOT NULL,
    hash          INTEGER NOT NULL,
    server_at     INTEGER NOT NULL,
    node_id       INTEGER NOT NULL
);
-- The arbiter of duplicates.
CREATE UNIQUE INDEX im_message_uuid ON im_message (from_uid, client_msg_id);
-- Pulls, and the proof that a number is given once.
CREATE UNIQUE INDEX im_message_seq ON im_message (conv_id, seq);
-- Rows of one node above its delivery mark.
CREATE INDEX im_message_node ON im_message (node_id, msg_id);

CREATE TABLE im_conversation (
    conv_id    TEXT    NOT NULL PRIMARY KEY,
    max_seq    INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
) WITHOUT ROWID;

-- One row a member, kept when the member leaves (active = 0). peer is the other user of a conversation of two.
CREATE TABLE im_member (
    uid           TEXT    NOT NULL,
    conv_id       TEXT    NOT NULL,
    peer          TEXT    NOT NULL,
    active        INTEGER NOT NULL,
    floor_seq     INTEGER NOT NULL,
    delivered_seq INTEGER NOT NULL,
    read_seq      INTEGER NOT NULL,
    changed_at    INTEGER NOT NULL,
    PRIMARY KEY (uid, conv_id)
) WITHOUT ROWID;
CREATE INDEX im_member_conv ON im_member (conv_id, uid);

-- One row a node id. mark: every message of the node up to it is enrolled or was found offline. id_ms: ids of the node
-- may have been given up to this time. lease_until is in ms of the database host's clock.
CREATE TABLE im_node (
    node_id     INTEGER NOT NULL PRIMARY KEY,
    owner       TEXT    NOT NULL,
    lease_until INTEGER NOT NULL,
    mark        INTEGER NOT NULL,
    id_ms       INTEGER NOT NULL
);

-- +goose Down
DROP TABLE im_node;
DROP TABLE im_member;
DROP TABLE im_conversation;
DROP TABLE im_message;
