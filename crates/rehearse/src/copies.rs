//! Copies of databases. `CREATE DATABASE … TEMPLATE` makes them before each run, and they are
//! dropped at the end. The original databases are only read.

use std::sync::atomic::AtomicBool;

use howdah_connect::{Client, ConnectTarget};
use howdah_report::rehearsal::RehearsalSide;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::RehearsalError,
    sql::{connect, literal, query_error, query_until_stopped, quoted},
};

/// The comment that marks a copy. A database without this comment is never dropped.
const COMMENT: &str = "copy made by howdah rehearse";

/// Maximum bytes of a database's name: `NAMEDATALEN - 1`.
const NAME_MAX: usize = 63;

/// The database to connect to for creating and dropping copies. Connections to the original are
/// avoided, because PostgreSQL does not copy a database that other sessions use.
const MAINTENANCE_DATABASE: &str = "postgres";

/// The database to connect to if the original is [`MAINTENANCE_DATABASE`].
const OTHER_MAINTENANCE_DATABASE: &str = "template1";

/// Returns the name of the copy of `database` for a side. The names for the two sides differ,
/// because both copies may be on one server.
pub(crate) fn copy_name(database: &str, side: RehearsalSide) -> String {
    let suffix = format!("_rehearsal_{side}");
    if database.len() + suffix.len() <= NAME_MAX {
        return format!("{database}{suffix}");
    }
    // Long names may begin alike.
    let hash = format!("_{:08x}", xxh3_64(database.as_bytes()) as u32);
    let room = database.floor_char_boundary(NAME_MAX - suffix.len() - hash.len());
    format!("{}{hash}{suffix}", &database[..room])
}

/// Creates the copy of a database for a side, after dropping an earlier copy. Returns `false` if
/// the server has no such database.
pub(crate) fn create(
    side: RehearsalSide,
    server: &ConnectTarget,
    original: &str,
    stop: &AtomicBool,
) -> Result<bool, RehearsalError> {
    let copy = copy_name(original, side);
    let mut client = connect(side, &maintenance_target(server, original))?;
    drop_copy(side, &mut client, &copy)?;
    let exists =
        format!("select 1 from pg_catalog.pg_database where datname = {}", literal(original));
    let exists = client.one_value(&exists);
    if exists.map_err(query_error(side, "look for the database"))?.is_none() {
        return Ok(false);
    }
    let (quoted_copy, template) = (quoted(&copy), quoted(original));
    let create = format!("create database {quoted_copy} template {template}");
    query_until_stopped(&mut client, &create, stop)
        .map_err(query_error(side, "copy the database"))?;
    let comment = format!("comment on database {quoted_copy} is {}", literal(COMMENT));
    client.query(&comment).map_err(query_error(side, "mark the copy of the database"))?;
    Ok(true)
}

/// Drops the copy of a database for a side, if there is one.
pub(crate) fn remove(
    side: RehearsalSide,
    server: &ConnectTarget,
    original: &str,
) -> Result<(), RehearsalError> {
    let mut client = connect(side, &maintenance_target(server, original))?;
    drop_copy(side, &mut client, &copy_name(original, side))
}

fn maintenance_target(server: &ConnectTarget, original: &str) -> ConnectTarget {
    server.with_database(match original {
        MAINTENANCE_DATABASE => OTHER_MAINTENANCE_DATABASE,
        _ => MAINTENANCE_DATABASE,
    })
}

fn drop_copy(side: RehearsalSide, client: &mut Client, copy: &str) -> Result<(), RehearsalError> {
    let comment = format!(
        "select coalesce(pg_catalog.shobj_description(oid, 'pg_database'), '')
         from pg_catalog.pg_database where datname = {}",
        literal(copy)
    );
    let comment = client.one_value(&comment);
    match comment.map_err(query_error(side, "look for copies of the database"))? {
        None => Ok(()),
        Some(comment) if comment == COMMENT => client
            .query(&format!("drop database {} with (force)", quoted(copy)))
            .map(drop)
            .map_err(query_error(side, "drop the copy of the database")),
        Some(_) => Err(RehearsalError::ForeignDatabase { side, database: copy.to_owned() }),
    }
}

#[test]
fn copy_names_fit_and_differ() {
    assert_eq!(copy_name("shop", RehearsalSide::Base), "shop_rehearsal_base");
    let long = ["a", "b"].map(|end| "ä".repeat(40) + end);
    for side in RehearsalSide::ALL {
        let names = long.each_ref().map(|database| copy_name(database, side));
        assert_ne!(names[0], names[1]);
        for name in names {
            assert!(name.len() <= NAME_MAX && name.ends_with(side.as_str()), "{name}");
        }
    }
}
