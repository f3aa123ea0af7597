//! A `pgbouncer.ini` as a `howdah.toml`.

use std::{fmt::Write as _, path::Path};

use super::{
    super::{Config, Wrong},
    Effect, KEYS, Reader,
    notes::note,
};

impl Config {
    /// Writes what a `pgbouncer.ini` says, with all that it includes, as a `[pool]` section that means the
    /// same. Above a key that does not do quite what it does in PgBouncer stands what is different; what
    /// does nothing is listed at the top. Files that it names, such as the user list, stay where they are.
    ///
    /// # Errors
    ///
    /// It has keys that nobody knows, or values that cannot be.
    pub fn import_pgbouncer(text: &str, path: &Path) -> Result<String, Wrong> {
        let mut read = Reader::read(text, path)?;
        read.config.find_files(path.parent().unwrap_or(Path::new("")));
        let remarks: Vec<_> = KEYS
            .iter()
            .filter(|key| read.keys.contains(&key.name))
            .filter_map(|key| match (key.effect, note(key.name)) {
                (Effect::Sets(ours, _), Some(note)) => {
                    Some((ours.to_owned(), format!("{}: {note}", key.name)))
                }
                _ => None,
            })
            .collect();
        let body = read.config.to_toml_with(&remarks);
        let mut text = format!("# From {}\n", path.display().to_string().replace('\n', " "));
        if !read.warnings.is_empty() {
            text.push_str("#\n# These do nothing here:\n");
        }
        for warning in &read.warnings {
            let _ = writeln!(text, "#   {}", warning.to_string().replace('\n', " "));
        }
        // What has its default is not written, and still differs.
        let hidden: Vec<_> =
            remarks.iter().filter(|(_, remark)| !body.contains(&format!("# {remark}\n"))).collect();
        if !hidden.is_empty() {
            text.push_str("#\n# These have their defaults, and differ a little:\n");
        }
        for (ours, remark) in hidden {
            let _ = writeln!(text, "#   {remark} ({ours})");
        }
        text.push('\n');
        text.push_str(&body);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Both are read, and mean the same.
    fn same(ini: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ini = ini.replace("{folder}", &folder.path().display().to_string());
        let ini = ini.replace("{host}", "db").replace("{port}", "5433");
        fs::write(at("pgbouncer.ini"), &ini).unwrap();
        fs::write(at("userlist.txt"), "\"u\" \"secret\"\n").unwrap();
        fs::write(at("hba"), "local all all trust\n").unwrap();
        fs::write(at("ident"), "").unwrap();
        fs::write(at("more.ini"), "[databases]\nmore = host=more\n").unwrap();
        let text = Config::import_pgbouncer(&ini, &at("pgbouncer.ini")).unwrap();
        fs::write(at("howdah.toml"), &text).unwrap();
        let read = |name| Config::read(&at(name)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read("howdah.toml").config, read("pgbouncer.ini").config, "{text}");
        text.replace(&folder.path().display().to_string(), "FOLDER")
    }

    #[test]
    fn what_is_imported_means_the_same() {
        let every = include_str!("../../../tests/it/every-key.ini");
        let text = same(every);
        assert!(text.contains("# These do nothing here:\n#   FOLDER/pgbouncer.ini:"), "{text}");
        assert!(!text.contains("secret = \"secret\""), "the user list stays where it is");
        same("[databases]\na =\n");
        same(
            "[databases]\na = host=x user=u password='it''s \"quoted\"' connect_query='set a=1'\n",
        );
        same(
            "[databases]\n* = host=/run,10.0.0.1 port=7\n[pgbouncer]\nserver_lifetime=0.25\n\
              server_check_query =\nauth_type = trust\nunix_socket_dir =\nlisten_addr = *\n",
        );
        same(
            "[databases]\n'my db' = \n'q.x' = dbname=\"x\"\n%include more.ini\n[pgbouncer]\n\
              auth_file = userlist.txt\n",
        );
    }

    #[test]
    fn differences_are_told_where_they_are() {
        let text = same(
            "[databases]\na =\n[pgbouncer]\nlisten_addr = *\nserver_login_retry = 3\n\
                         default_pool_size = 20\nlogfile = x\n",
        );
        let expected = "\
# From FOLDER/pgbouncer.ini
#
# These do nothing here:
#   FOLDER/pgbouncer.ini:7: logfile: logging is set by --log-level and --log-format; the log goes to stderr
#
# These have their defaults, and differ a little:
#   default_pool_size: exact over all workers (sizes.pool)

[pool]
allow-cleartext-password = true
shutdown-mode = \"wait-for-clients\"

[pool.auth]
type = \"md5\"

[pool.databases.a]

[pool.listen]
addresses = [\"*\"]

[pool.timeouts]
# server_login_retry: the longest pause: the first is short, and each doubles. New clients fail fast meanwhile; those that are in wait
server-login-retry = 3
";
        assert_eq!(text, expected);
    }
}
