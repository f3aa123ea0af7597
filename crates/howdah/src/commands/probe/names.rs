//! Names of relations, asked for once each.

use std::{collections::HashMap, time::Duration};

use howdah_connect::{Client, Target};

/// Relations by database and oid, where a session can be had to ask.
#[derive(Debug, Default)]
pub(super) struct Names {
    session: Option<(Target, Client)>,
    /// Sessions on databases, `None` where there is none to be had.
    databases: HashMap<u32, Option<(String, Client)>>,
    known: HashMap<(u32, u32), String>,
    files: HashMap<(u32, u32, u32), String>,
}

/// The server is busy when it is looked at; a name is not worth waiting for.
const PATIENCE: Duration = Duration::from_secs(2);

impl Names {
    pub(super) fn new(session: Option<(Target, Client)>) -> Self {
        Self { session, ..Self::default() }
    }

    /// `shop.public.orders`, or `16384/16385` where nobody can be asked.
    pub(super) fn of(&mut self, database: u32, relation: u32) -> String {
        if let Some(known) = self.known.get(&(database, relation)) {
            return known.clone();
        }
        let name = self.ask(database, relation);
        let name = name.unwrap_or_else(|| format!("{database}/{relation}"));
        self.known.insert((database, relation), name.clone());
        name
    }

    /// The same by the relation's file.
    pub(super) fn of_file(&mut self, tablespace: u32, database: u32, filenode: u32) -> String {
        if let Some(known) = self.files.get(&(tablespace, database, filenode)) {
            return known.clone();
        }
        // The database's own tablespace goes by 0.
        let sql = format!(
            "SELECT pg_catalog.pg_filenode_relation(\
               CASE WHEN dattablespace = {tablespace} THEN 0 ELSE {tablespace} END, {filenode})::oid \
             FROM pg_catalog.pg_database WHERE datname = current_database()"
        );
        let relation = self.database(database).and_then(|(_, client)| {
            client.one_value(&sql).ok()??.parse::<u32>().ok().filter(|oid| *oid != 0)
        });
        let name = match relation {
            Some(relation) => self.of(database, relation),
            None => format!("{database}/file {filenode}"),
        };
        self.files.insert((tablespace, database, filenode), name.clone());
        name
    }

    /// A session on a database, if there is one to be had.
    fn database(&mut self, database: u32) -> Option<&mut (String, Client)> {
        let session = &mut self.session;
        self.databases
            .entry(database)
            .or_insert_with(|| {
                let (target, client) = session.as_mut()?;
                let sql = format!("SELECT datname FROM pg_database WHERE oid = {database}");
                let name = client.one_value(&sql).ok()??;
                let mut client = Client::connect(&target.with_database(&name)).ok()?;
                client.set_timeout(Some(PATIENCE));
                Some((name, client))
            })
            .as_mut()
    }

    fn ask(&mut self, database: u32, relation: u32) -> Option<String> {
        let (database, client) = self.database(database)?;
        let sql = format!(
            "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {relation}"
        );
        let name = client.one_value(&sql).ok()??;
        Some(format!("{database}.{name}"))
    }
}
