//! Loads `pg_hba.conf` and `pg_ident.conf`, and the OS users and networks that they refer to.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use howdah_settings::Diagnostic;

use super::{AuthConfig, file::read_text};
use crate::hba::{Files, Hba, Networks};

/// Access to the HBA files on disk.
struct Disk;

impl Files for Disk {
    fn text(&self, path: &Path) -> io::Result<String> {
        read_text(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }
}

impl AuthConfig {
    /// Reads `hba_file`, if configured, and its `ident_file` into `hba`. Returns the errors found
    /// in the files; if there are any, `hba` is `None`.
    pub(super) fn load_rules(&mut self) -> Vec<Diagnostic> {
        self.hba = None;
        let Some(rules) = &self.hba_file else { return Vec::new() };
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let users = os_users(&passwd);
        let maps = self.ident_file.as_deref();
        match Hba::read(rules, maps, &Disk, Networks::from_kernel(), users) {
            Ok(hba) => {
                self.hba = Some(Arc::new(hba));
                Vec::new()
            }
            Err(errors) => errors,
        }
    }
}

/// Returns the names of the operating system's users by uid, from the lines `name:password:uid:...`
/// of passwd(5). If two lines have the same uid, the first one counts, as in getpwuid(3).
fn os_users(passwd: &str) -> BTreeMap<u32, String> {
    let mut users = BTreeMap::new();
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let name = fields.next().unwrap_or_default();
        if let Some(uid) = fields.nth(1).and_then(|uid| uid.parse().ok()) {
            users.entry(uid).or_insert_with(|| name.to_owned());
        }
    }
    users
}

#[test]
fn first_os_user_with_uid_is_used() {
    let users = os_users("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\nbroken\nann:x:7:7:::\n");
    assert_eq!(users, BTreeMap::from([(0, "root".to_owned()), (7, "ann".to_owned())]));
}
