-- +goose Up
CREATE TABLE im_message (
    msg_id        BIGINT       NOT NULL,
    conv_id       VARCHAR(259) NOT NULL,
    seq           BIGINT       NOT NULL,
    from_uid      VARCHAR(128) NOT NULL,
    client_msg_id VARCHAR(64)  NOT NULL,
    msg_type      INT          NOT NULL,
    content       MEDIUMTEXT   NOT NULL,
    body          MEDIUMBLOB   NOT NULL,
    hash          BIGINT       NOT NULL,
    server_at     BIGINT       NOT NULL,
    node_id       INT          NOT NULL,
    PRIMARY KEY (msg_id),
    UNIQUE KEY im_message_uuid (from_uid, client_msg_id),
    UNIQUE KEY im_message_seq (conv_id, seq),
    KEY im_message_node (node_id, msg_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE im_conversation (
    conv_id    VARCHAR(259) NOT NULL,
    max_seq    BIGINT       NOT NULL,
    changed_at BIGINT       NOT NULL,
    PRIMARY KEY (conv_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE im_member (
    uid           VARCHAR(128) NOT NULL,
    conv_id       VARCHAR(259) NOT NULL,
    peer          VARCHAR(128) NOT NULL,
    active        TINYINT      NOT NULL,
    floor_seq     BIGINT       NOT NULL,
    delivered_seq BIGINT       NOT NULL,
    read_seq      BIGINT       NOT NULL,
    changed_at    BIGINT       NOT NULL,
    PRIMARY KEY (uid, conv_id),
    KEY im_member_conv (conv_id, uid)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE im_node (
    node_id     INT          NOT NULL,
    owner       VARCHAR(128) NOT NULL,
    lease_until BIGINT       NOT NULL,
    mark        BIGINT       NOT NULL,
    id_ms       BIGINT       NOT NULL,
    PRIMARY KEY (node_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE im_node;
DROP TABLE im_member;
DROP TABLE im_conversation;
DROP TABLE im_message;
