//! Copies of a database. `CREATE DATABASE … TEMPLATE` makes them before each run, and they are
//! dropped at the end. The original database is only read.

use std::sync::atomic::AtomicBool;

use howdah_connect::{Client, ConnectTarget};
use howdah_report::rehearsal::RehearsalSide;

use crate::{
    error::RehearsalError,
    sql::{connect, literal, query_error, query_until_stopped, quoted},
};

/// The comment that marks a copy. A database without this comment is never dropped.
const COMMENT: &str = "copy made by howdah rehearse";

/// Maximum bytes of a database's name: `NAMEDATALEN - 1`.
const NAME_MAX: usize = 63;

/// The database to connect to for creating others: it exists on every server, and is never copied
/// here.
const MAINTENANCE_DATABASE: &str = "postgres";

/// Returns the name of the copy of `database` for a side. It differs between the sides, because
/// both may be on one server.
pub(crate) fn copy_name(database: &str, side: RehearsalSide) -> String {
    let suffix = format!("_rehearsal_{side}");
    let room = database.floor_char_boundary(NAME_MAX - suffix.len());
    format!("{}{suffix}", &database[..room])
}

/// Replaces the copy for a side with a new one of the database of `original`.
pub(crate) fn create(
    side: RehearsalSide,
    original: &ConnectTarget,
    stop: &AtomicBool,
) -> Result<(), RehearsalError> {
    let copy = copy_name(original.database(), side);
    let mut client = connect(side, &original.with_database(MAINTENANCE_DATABASE))?;
    drop_copy(side, &mut client, &copy)?;
    let (quoted_copy, template) = (quoted(&copy), quoted(original.database()));
    let create = format!("create database {quoted_copy} template {template}");
    query_until_stopped(&mut client, &create, stop)
        .map_err(query_error(side, "copy the database"))?;
    let comment = format!("comment on database {quoted_copy} is {}", literal(COMMENT));
    client.query(&comment).map_err(query_error(side, "mark the copy of the database"))?;
    Ok(())
}

/// Drops the copy for a side, if there is one.
pub(crate) fn remove(side: RehearsalSide, original: &ConnectTarget) -> Result<(), RehearsalError> {
    let mut client = connect(side, &original.with_database(MAINTENANCE_DATABASE))?;
    drop_copy(side, &mut client, &copy_name(original.database(), side))
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
    let long = "ä".repeat(40);
    for side in RehearsalSide::ALL {
        let name = copy_name(&long, side);
        assert!(name.len() <= NAME_MAX && name.ends_with(side.as_str()), "{name}");
    }
}
