//! The tokens in statements, which name their clients.

/// The token of a statement, which names its client and the shards that it is meant for.
pub(super) struct StatementToken {
    pub(super) text: String,
    pub(super) owner: u32,
    pub(super) shard: TokenShard,
}

/// The shards that a statement is meant for.
pub(super) enum TokenShard {
    Unknown,
    One(u32),
    Every,
}

impl StatementToken {
    /// Finds the last token in a statement, such as `c7.12`, `c7.t12.s0` or `c7_t12_every`.
    pub(super) fn parse(sql: &str) -> Option<Self> {
        sql.rsplit(' ').find_map(|word| {
            let text = word.trim_end_matches([')', ',']).replace('_', ".");
            let mut parts = text.strip_prefix('c')?.split('.');
            let owner = parts.next()?.parse().ok()?;
            parts.next()?;
            let shard = match parts.next() {
                Some("every") => TokenShard::Every,
                Some(shard) => TokenShard::One(shard.strip_prefix('s')?.parse().ok()?),
                None => TokenShard::Unknown,
            };
            Some(Self { text, owner, shard })
        })
    }
}
