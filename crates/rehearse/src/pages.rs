//! [`ReportServer`]: pages with the reports of past rehearsals, for browsers on this machine.

use std::{
    fmt::Write as _,
    io,
    net::SocketAddr,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Router,
    http::{
        HeaderName, StatusCode, Uri,
        header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use howdah_http::server::{HttpServer, PageAccess, PageServerError};
use howdah_report::{WebPage, hashed_policy, rehearsal::html::index_page};

use crate::archive::{HTML_REPORT, RehearsalArchive, ReportFile};

/// Maximum number of open connections. Each may hold a whole report in memory.
const CONNECTIONS_MAX: usize = 16;

/// Path below which reports are served.
const REPORTS: &str = "/rehearsals/";

/// A web server for the reports of past rehearsals, which stops when dropped.
#[derive(Debug)]
pub struct ReportServer {
    server: HttpServer,
}

/// The reason why a report server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportServerError {
    /// The folder cannot be opened.
    #[error("cannot open the folder {}", path.display())]
    Folder {
        /// The folder, as the user gave it.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The address cannot be used.
    #[error(transparent)]
    Server(#[from] PageServerError),
}

impl ReportServer {
    /// Serves an index of the rehearsals in `dir` and its subfolders, and their reports.
    ///
    /// # Errors
    ///
    /// See [`ReportServerError`].
    pub fn start(
        dir: PathBuf,
        address: SocketAddr,
        access: &PageAccess,
    ) -> Result<Self, ReportServerError> {
        let archive = RehearsalArchive::open(dir.clone())
            .map_err(|source| ReportServerError::Folder { path: dir, source })?;
        let router = router(Arc::new(archive));
        let server = HttpServer::start_pages("reports", address, access, CONNECTIONS_MAX, router)?;
        Ok(Self { server })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

fn router(archive: Arc<RehearsalArchive>) -> Router {
    let index = {
        let archive = Arc::clone(&archive);
        async move || {
            blocking(move || match archive.index(link) {
                Ok(index) => page_response(index_page(&index)),
                Err(error) => io_error_response(&error),
            })
            .await
        }
    };
    let file = async move |uri: Uri| {
        let Some((path, file)) = parse_path(uri.path()) else { return not_found() };
        blocking(move || file_response(&archive, &path, file)).await
    };
    Router::new()
        .route("/", get(index))
        .route("/rehearsals/{*file}", get(file))
        .fallback(async || not_found())
}

/// Runs work that reads files, without delaying other requests.
async fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "cannot make a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found\n").into_response()
}

fn io_error_response(error: &io::Error) -> Response {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => not_found(),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the reports: {error}\n"))
            .into_response(),
    }
}

/// Returns the response for one of Howdah's own pages, with its content security policy as a
/// header.
pub(crate) fn page_response(page: WebPage) -> Response {
    let policy = format!("{}; frame-ancestors 'none'", page.policy);
    let headers: [(HeaderName, String); 2] =
        [(CONTENT_TYPE, HTML_REPORT.content_type.to_owned()), (CONTENT_SECURITY_POLICY, policy)];
    (headers, page.html).into_response()
}

/// Returns the response for a file of a rehearsal, or an error response if it cannot be read.
///
/// Reports may come from elsewhere, so the HTML report is sandboxed: its scripts, which must be
/// allowed by their hashes in its own policy, have an opaque origin and can request nothing, not
/// even other reports. Other files are downloads.
pub(crate) fn file_response(archive: &RehearsalArchive, path: &Path, file: ReportFile) -> Response {
    let bytes = match archive.read(path, file) {
        Ok(bytes) => bytes,
        Err(error) => return io_error_response(&error),
    };
    let content_type = (CONTENT_TYPE, file.content_type.to_owned());
    if file == HTML_REPORT {
        // Without a policy of its own, the report is shown without scripts.
        let own = hashed_policy(&bytes).unwrap_or(
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
        );
        let policy = format!("{own}; frame-ancestors 'none'; sandbox allow-scripts");
        return ([content_type, (CONTENT_SECURITY_POLICY, policy)], bytes).into_response();
    }
    let disposition = format!("attachment; filename=\"{}\"", download_name(path, file));
    ([content_type, (CONTENT_DISPOSITION, disposition)], bytes).into_response()
}

/// Returns the name of a downloaded file: the name of the folder, of which only `A` to `Z`, `a` to
/// `z`, digits, `-` and `_` remain, at most 100 of them, then the name of the file.
fn download_name(path: &Path, file: ReportFile) -> String {
    let folder = path.file_name().unwrap_or_default().to_string_lossy();
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    let folder: String = folder.chars().filter(is_plain).take(100).collect();
    if folder.is_empty() { file.name.to_owned() } else { format!("{folder}-{}", file.name) }
}

/// Makes the URL of a file, relative to the index.
fn link(path: &Path, file: ReportFile) -> String {
    let mut link = REPORTS.trim_start_matches('/').to_owned();
    for name in path {
        for byte in name.as_bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    link.push(char::from(*byte));
                }
                // Writing to a String cannot fail.
                _ => drop(write!(link, "%{byte:02X}")),
            }
        }
        link.push('/');
    }
    link + file.name
}

/// Returns the folder and the file that a URL's path names; the reverse of [`link`].
fn parse_path(path: &str) -> Option<(PathBuf, ReportFile)> {
    let rest = path.strip_prefix(REPORTS)?;
    let (folder, name) = rest.rsplit_once('/').unwrap_or(("", rest));
    let file = ReportFile::from_name(name)?;
    let mut bytes = Vec::new();
    let mut rest = folder.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            byte => byte,
        };
        bytes.push(decoded);
    }
    Some((std::ffi::OsString::from_vec(bytes).into(), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_parsed_back() {
        for folder in ["", "a", "a/b", "a b/ü", "100%/<x>", "..a/%2e", "q?x#y"] {
            let link = link(Path::new(folder), HTML_REPORT);
            let path =
                link.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%/".contains(&byte));
            assert!(path, "{link}");
            let parsed = parse_path(&format!("/{link}"));
            assert_eq!(parsed, Some((PathBuf::from(folder), HTML_REPORT)), "{link}");
        }
    }

    #[test]
    fn other_paths_are_not_parsed() {
        for path in [
            "/",
            "/rehearsals/",
            "/rehearsals",
            "/rehearsals/rehearsal.json",
            "/report.html",
            "/rehearsals/a/reset.log",
            "/rehearsals/%/report.html",
            "/rehearsals/%4/report.html",
            "/rehearsals/%zz/report.html",
            "/rehearsals/a/report.html/",
        ] {
            assert_eq!(parse_path(path), None, "{path}");
        }
    }

    #[test]
    fn download_names_are_harmless() {
        let json = ReportFile::from_name("report.json").unwrap();
        let name = |path: &str| download_name(Path::new(path), json);
        assert_eq!(name("team/drop-index"), "drop-index-report.json");
        assert_eq!(name("\"; x=\r\n"), "x-report.json");
        assert_eq!(name(""), "report.json");
    }
}
