//! What a start opens, opened beforehand: whether the files and places that settings name can be used.
//! Nothing is left open, and a pooler that runs on the same settings notices nothing.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::{ffi::OsStrExt as _, fs::FileTypeExt as _},
    path::Path,
};

use howdah_connect::tls::{self, TlsError};
use howdah_net::Listener;
use howdah_sift::RedactionKey;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{
    StartError, directory::ServerTls, group, listening, reload::chain, takeover, tls as client_tls,
};
use crate::{WorkerId, config::Config};

/// What stands in the way of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Keys below `[pool]`, and why what they name cannot be used.
    pub errors: Vec<(String, String)>,
    /// The same for what may be as it should be: a port on which a pooler listens that is to be taken over.
    pub warnings: Vec<(String, String)>,
}

/// Longest path of a unix socket: `sun_path` in unix(7), without the zero byte at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Tries what a start with these settings opens: certificates and keys, addresses, directories, the group of
/// sockets, the folder for captures. Other files were read with the settings. `listens` says whether the
/// places of `[pool.listen]` are to be used; a process that gets its sockets from a service manager uses
/// none of them.
pub fn preflight(config: &Config, listens: bool) -> Preflight {
    let mut found = Preflight::default();
    found.tls(config);
    if listens {
        found.addresses(config);
        found.directories(config);
    }
    if let Some(name) = &config.listen.unix_group
        && let Err(error) = group::number(name)
    {
        found.error("listen.unix-group", chain(&error));
    }
    if let Some(path) = &config.listen.takeover {
        found.writable("listen.takeover", path.parent().unwrap_or(Path::new("")));
    }
    found.capture(config);
    let most = usize::from(WorkerId::MAX) + 1;
    if let Some(workers) = config.workers.filter(|workers| workers.get() > most) {
        found.error("workers", format!("{workers} are too many: at most {most}"));
    }
    found
}

impl Preflight {
    fn error(&mut self, key: &str, text: impl Into<String>) {
        self.errors.push((key.to_owned(), text.into()));
    }

    /// Each file by itself, so that each is named; and then whether they go together.
    fn tls(&mut self, config: &Config) {
        let before = self.errors.len();
        for (side, leg, is_used) in [
            ("client", &config.tls.client, config.tls.client_mode()),
            ("server", &config.tls.server, config.tls.server_mode()),
        ]
        .map(|(side, leg, mode)| (side, leg, mode != howdah_connect::SslMode::Disable))
        {
            type Check = fn(&Path) -> Result<(), TlsError>;
            let files: [(&str, &Option<_>, Check); 3] = [
                ("certificate", &leg.certificate, tls::check_certificates),
                ("key", &leg.key, tls::check_private_key),
                ("ca-file", &leg.ca_file, tls::check_authorities),
            ];
            for (name, path, check) in files {
                if let Some(path) = path.as_deref().filter(|_| is_used)
                    && let Err(error) = check(path)
                {
                    self.error(&format!("tls.{side}.{name}"), chain(&error));
                }
            }
        }
        if self.errors.len() > before {
            return;
        }
        let made =
            [client_tls::server_config(&config.tls).map(drop), ServerTls::new(config).map(drop)];
        for error in made.into_iter().filter_map(Result::err) {
            match error {
                StartError::ClientTls { key, source } | StartError::ServerTls { key, source } => {
                    self.error(&key, chain(&source));
                }
                other => self.error("tls", chain(&other)),
            }
        }
    }

    fn addresses(&mut self, config: &Config) {
        let listen = &config.listen;
        for text in &listen.addresses {
            match listening::resolve(text, listen.port) {
                Ok(addresses) => addresses.into_iter().for_each(|address| self.address(address)),
                Err(error) => self.error("listen.addresses", chain(&error)),
            }
        }
    }

    fn address(&mut self, address: SocketAddr) {
        let Err(error) = Listener::check_free(address) else { return };
        let key = "listen.addresses".to_owned();
        match error.source.kind() {
            io::ErrorKind::AddrInUse => {
                let text = format!(
                    "{address} is in use: a start fails, unless it takes over from the pooler there"
                );
                self.warnings.push((key, text));
            }
            _ => self.errors.push((key, chain(&error))),
        }
    }

    fn directories(&mut self, config: &Config) {
        let listen = &config.listen;
        for directory in &listen.unix_directories {
            let path = directory.join(format!(".s.PGSQL.{}", listen.port));
            if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                let path = path.display();
                let text = format!("{path} is longer than a socket's path may be: 107 bytes");
                self.error("listen.unix-directories", text);
            } else if !directory.as_os_str().as_bytes().starts_with(b"@") {
                self.writable("listen.unix-directories", directory);
                self.socket("listen.unix-directories", &path);
            }
        }
        if let Some(path) = takeover::place(config) {
            self.socket("listen.takeover", &path);
        }
    }

    /// Whether a path is a socket, which is replaced, or free.
    fn socket(&mut self, key: &str, path: &Path) {
        let found = fs::symlink_metadata(path);
        if found.is_ok_and(|it| !it.file_type().is_socket()) {
            self.error(key, format!("{} is there, and is no socket", path.display()));
        }
    }

    /// Whether files can be made in a directory.
    fn writable(&mut self, key: &str, directory: &Path) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let shown = directory.display();
        match fs::metadata(directory) {
            Err(error) => self.error(key, format!("{shown}: {error}")),
            Ok(it) if !it.is_dir() => self.error(key, format!("{shown} is no directory")),
            Ok(_) => {
                let access = Access::WRITE_OK | Access::EXEC_OK;
                if let Err(error) = accessat(CWD, directory, access, AtFlags::EACCESS) {
                    let error = io::Error::from(error);
                    self.error(key, format!("cannot make files in {shown}: {error}"));
                }
            }
        }
    }

    fn capture(&mut self, config: &Config) {
        let capture = &config.capture;
        if let Some(folder) = &capture.path {
            // What of it is not there is made.
            let there = folder.ancestors().find(|path| path.exists());
            self.writable("capture.path", there.unwrap_or(Path::new("")));
        }
        if let Some(path) = capture.redact_key.as_ref().filter(|_| capture.redact) {
            let read = File::open(path).and_then(|_| fs::read(path));
            let made = read.map_err(|error| error.to_string()).and_then(|bytes| {
                RedactionKey::from_secret(&bytes).map(drop).map_err(|error| chain(&error))
            });
            if let Err(text) = made {
                self.error("capture.redact-key", format!("{}: {text}", path.display()));
            }
        }
    }
}
