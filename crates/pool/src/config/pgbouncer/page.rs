//! The page of the reference that follows from the tables of keys.

use std::fmt::Write as _;

use super::{super::page, DATABASE_KEYS, Effect, KEYS, USER_KEYS, notes::note};

const HEAD: &str = "\
# Keys of pgbouncer.ini

<!-- Made from the tables of keys by `INSTA_UPDATE=always cargo test -p howdah-pool --lib page`. -->

Every key that PgBouncer 1.25 documents may stand in a `pgbouncer.ini` that `howdah pool` is given. What each does
here is said in its `howdah.toml` form, below `[pool]`; `howdah pool import` writes that for a whole file. A key
that does nothing is named in a warning at start, by file and line; one that PgBouncer does not know is an
error. The default of a key is PgBouncer's.

`%include` takes a name relative to the file it stands in. `[peers]` does nothing: one process uses every core.

## `[pgbouncer]`

| key | here | difference |
|---|---|---|
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for key in KEYS {
        let _ = match key.effect {
            Effect::Sets(ours, _) => {
                let note = note(key.name).unwrap_or_default();
                writeln!(page, "| `{}` | `{ours}` | {note} |", key.name)
            }
            Effect::Nothing(why) => writeln!(page, "| `{}` | nothing | {why} |", key.name),
        };
    }
    for (section, place, keys) in
        [("databases", "databases.NAME", DATABASE_KEYS), ("users", "users.NAME", USER_KEYS)]
    {
        let _ = write!(page, "\n## `[{section}]`\n\n| key | in `{place}` |\n|---|---|\n");
        for (key, ours) in keys {
            let _ = writeln!(page, "| `{key}` | `{ours}` |");
        }
    }
    page
}

#[test]
fn the_page_is_what_the_tables_say() {
    page::is_kept("pgbouncer-settings.md", &page());
}

#[test]
fn what_a_key_sets_is_explained() {
    let reference = include_str!("../../../../../docs/src/reference/pool.md");
    let keys = KEYS.iter().filter_map(|key| match key.effect {
        Effect::Sets(ours, _) => Some(ours),
        Effect::Nothing(_) => None,
    });
    let own = DATABASE_KEYS.iter().chain(USER_KEYS).map(|(_, ours)| *ours);
    for ours in keys.chain(own) {
        let last = ours.rsplit('.').next().unwrap_or(ours);
        assert!(reference.contains(&format!("`{last}`")), "{ours} is not explained");
    }
}
