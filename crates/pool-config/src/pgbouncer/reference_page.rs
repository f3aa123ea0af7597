//! Generates the reference page of PgBouncer's keys from the tables of keys.

use std::fmt::Write as _;

use super::{
    super::reference_page, DATABASE_KEYS, KEYS, KeyEffect, PgbouncerKey, USER_KEYS,
    differences::difference,
};

const HEAD: &str = "\
# Keys of pgbouncer.ini

<!-- Generated from the tables of keys by `INSTA_UPDATE=always cargo test -p howdah-pool-config --lib page`. -->

`howdah pool` accepts a `pgbouncer.ini` with every key that PgBouncer 1.25 documents. The tables show the key below
`[pool]` in `howdah.toml` that each key sets; `howdah pool import` converts a whole file. A key without effect causes a
warning at start, with file and line; a key that PgBouncer does not know is an error. Defaults are PgBouncer's.

File names are relative to the working directory, and that of `%include` to the including file. [Side by side with
PgBouncer](pgbouncer-differences.md) compares both programs case by case.

`[peers]` sets `peers`, without the entry whose number is `peer_id`. It has no effect without `peer_id`. Keys of an
entry: `host`, also a directory of a unix socket, `port` (6432 by default), and `pool_size`, which has no effect. All
peers must be Howdah: PgBouncer's cancel keys have another form.

## `[pgbouncer]`

| key | in `pool` | difference |
|---|---|---|
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for key in KEYS {
        let _ = match key.effect {
            KeyEffect::Sets(ours) | KeyEffect::Converts(ours, ..) => {
                let text = difference(key.name).unwrap_or_default();
                writeln!(page, "| `{}` | `{ours}` | {text} |", key.name)
            }
            KeyEffect::Ignored { why, .. } => {
                writeln!(page, "| `{}` | no effect | {why} |", key.name)
            }
        };
    }
    for (section, table, keys) in
        [("databases", "databases.NAME", DATABASE_KEYS), ("users", "users.NAME", USER_KEYS)]
    {
        let _ = write!(page, "\n## `[{section}]`\n\n| key | in `{table}` |\n|---|---|\n");
        for (key, ours) in keys {
            let _ = writeln!(page, "| `{key}` | `{ours}` |");
        }
    }
    page
}

#[test]
fn page_matches_tables() {
    reference_page::assert_up_to_date("pgbouncer-settings.md", &page());
}

#[test]
fn every_target_key_is_in_reference() {
    let reference = include_str!("../../../../docs/src/reference/pool.md");
    let keys = KEYS.iter().filter_map(PgbouncerKey::target);
    let own = DATABASE_KEYS.iter().chain(USER_KEYS).map(|(_, ours)| *ours);
    for ours in keys.chain(own) {
        let last = ours.rsplit('.').next().unwrap_or(ours);
        assert!(reference.contains(&format!("`{last}`")), "{ours} is not explained");
    }
}
