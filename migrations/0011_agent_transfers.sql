-- Transfers of agents to new owners, as read off the chain. A credential that was stored for the previous owner stays;
-- the table shows that the owner has changed since.
--
-- Additive: workers of the previous version do not read it. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS herald.agent_transfers (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    transaction_hash  text          NOT NULL,
    log_index         bigint        NOT NULL,
    block_number      bigint        NOT NULL,
    from_address      text          NOT NULL,
    to_address        text          NOT NULL,
    at                timestamptz   NOT NULL, -- timestamp of the block
    PRIMARY KEY (chain_id, identity_registry, agent_id, transaction_hash, log_index)
);

-- +goose Down
DROP TABLE IF EXISTS herald.agent_transfers;
