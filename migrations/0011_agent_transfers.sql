-- To whom agents were given, as the chain said: a credential that was stored for the owner before is kept, and shown as that.
--
-- Additive: a worker of the version before does not read it. It can be run again.

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
    at                timestamptz   NOT NULL, -- of the block
    PRIMARY KEY (chain_id, identity_registry, agent_id, transaction_hash, log_index)
);

-- +goose Down
DROP TABLE IF EXISTS herald.agent_transfers;
