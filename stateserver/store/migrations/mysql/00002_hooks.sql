-- +goose Up
CREATE TABLE im_hook (
    hook        VARCHAR(16)  NOT NULL,
    node_id     INT          NOT NULL,
    told        BIGINT       NOT NULL,
    owner       VARCHAR(128) NOT NULL,
    lease_until BIGINT       NOT NULL,
    PRIMARY KEY (hook, node_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE im_hook;
