//! [`Store`]: the requests to an object store.

mod client;
mod error;

use std::{
    collections::HashMap,
    io,
    ops::Range,
    path::Path,
    sync::{
        Arc, OnceLock, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutPayload, WriteMultipart,
    path::Path as ObjectPath,
};
use tokio::runtime::{Builder, Handle};

use super::Listing;

/// A bucket, and how to reach it.
#[derive(Clone, Debug)]
pub(super) struct Store {
    requests: Arc<dyn ObjectStore>,
    provider: Provider,
}

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    S3,
    Google,
    Azure,
}

/// A request that takes longer than this is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Objects up to this size are uploaded by one request, larger ones in parts of this size.
const UPLOAD_PART_BYTES: usize = 16 << 20;

impl Store {
    /// Returns the store of a URL. The first call for a bucket reads the settings in the
    /// environment.
    pub(super) fn of(url: &Path) -> io::Result<Self> {
        static STORES: OnceLock<std::sync::Mutex<HashMap<String, Store>>> = OnceLock::new();
        let (provider, bucket, _) = split(url)?;
        let key = format!("{provider:?} {bucket}");
        let stores = STORES.get_or_init(Default::default);
        let mut stores = stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&key) {
            return Ok(store.clone());
        }
        let store = Self { requests: client::connect(provider, bucket)?, provider };
        stores.insert(key, store.clone());
        Ok(store)
    }

    /// Lists a folder.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Listing> {
        let prefix = object_path(dir)?;
        let requests = Arc::clone(&self.requests);
        let found =
            self.wait_for(dir, async move { requests.list_with_delimiter(Some(&prefix)).await })?;
        if found.objects.is_empty() && found.common_prefixes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there are no objects"));
        }
        let name = |path: &ObjectPath| path.filename().unwrap_or_default().to_owned();
        Ok(Listing {
            files: found.objects.iter().map(|object| name(&object.location)).collect(),
            folders: found.common_prefixes.iter().map(name).collect(),
        })
    }

    /// Reads at most `limit` bytes from the start of an object.
    pub(super) fn read(&self, url: &Path, limit: u64) -> io::Result<Bytes> {
        // A range would be an error for an empty object.
        let (path, requests) = (object_path(url)?, Arc::clone(&self.requests));
        self.wait_for(url, async move {
            let found = requests.get(&path).await?;
            if found.meta.size <= limit {
                return found.bytes().await;
            }
            requests.get_range(&path, 0..limit).await
        })
    }

    /// Reads at most `length` bytes from the end of an object; returns them and its size.
    pub(super) fn read_end(&self, url: &Path, length: u64) -> io::Result<(Bytes, u64)> {
        let (path, requests) = (object_path(url)?, Arc::clone(&self.requests));
        self.wait_for(url, async move {
            // Not all stores know ranges that count from the end. The response has the size, and a
            // small object needs no second request.
            let range = Some(GetRange::Bounded(0..length));
            let options = GetOptions { range, ..GetOptions::default() };
            let start = requests.get_opts(&path, options).await?;
            let size = start.meta.size;
            if size <= length {
                return Ok((start.bytes().await?, size));
            }
            Ok((requests.get_range(&path, size - length..size).await?, size))
        })
    }

    /// Reads a range of an object.
    pub(super) fn read_range(&self, url: &Path, range: Range<u64>) -> io::Result<Bytes> {
        let (path, requests) = (object_path(url)?, Arc::clone(&self.requests));
        let length = range.end.saturating_sub(range.start);
        let bytes = self.wait_for(url, async move { requests.get_range(&path, range).await })?;
        if (bytes.len() as u64) < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    /// Removes an object.
    pub(super) fn remove(&self, url: &Path) -> io::Result<()> {
        let (path, requests) = (object_path(url)?, Arc::clone(&self.requests));
        self.wait_for(url, async move { requests.delete(&path).await })
    }

    /// Creates or replaces an object. It appears complete or not at all.
    pub(super) fn upload(&self, url: &Path, bytes: Bytes) -> io::Result<()> {
        let (path, requests) = (object_path(url)?, Arc::clone(&self.requests));
        self.wait_for(url, async move {
            if bytes.len() <= UPLOAD_PART_BYTES {
                requests.put(&path, PutPayload::from_bytes(bytes)).await?;
                return Ok(());
            }
            let upload = requests.put_multipart(&path).await?;
            let mut parts = WriteMultipart::new_with_chunk_size(upload, UPLOAD_PART_BYTES);
            parts.put(bytes);
            parts.finish().await.map(drop)
        })
    }

    /// Runs a request. Retries are part of it.
    fn wait_for<T: Send + 'static>(
        &self,
        url: &Path,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (reply, received) = mpsc::sync_channel(1);
        runtime()?.spawn(async move {
            // The receiver waits for it.
            let _ = reply.send(request.await);
        });
        let start = Instant::now();
        loop {
            match received.recv_timeout(REPORT_INTERVAL) {
                Ok(result) => return result.map_err(|error| error::convert(self.provider, &error)),
                Err(RecvTimeoutError::Timeout) => tracing::warn!(
                    url = %url.display(),
                    seconds = start.elapsed().as_secs(),
                    "object store not responding; retrying"
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the request to the object store was given up"));
                }
            }
        }
    }
}

/// Returns the runtime of all requests. One thread runs it, so that connections are served between
/// requests, too.
fn runtime() -> io::Result<Handle> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = RUNTIME.get() {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("object-store".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(RUNTIME.get_or_init(|| handle).clone())
}

/// Splits a URL into provider, bucket and key.
fn split(url: &Path) -> io::Result<(Provider, &str, &str)> {
    let invalid = |why| io::Error::other(format!("{} is not valid: {why}", url.display()));
    let text = url.to_str().ok_or_else(|| invalid("it is not UTF-8"))?;
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let provider = match scheme {
        "s3" => Provider::S3,
        "gs" => Provider::Google,
        _ => Provider::Azure,
    };
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(invalid(&format!("write {scheme}://BUCKET/PREFIX")));
    }
    Ok((provider, bucket, key))
}

/// Returns the path of a URL within its bucket.
fn object_path(url: &Path) -> io::Result<ObjectPath> {
    let (_, _, key) = split(url)?;
    ObjectPath::parse(key)
        .map_err(|error| io::Error::other(format!("{} is not valid: {error}", url.display())))
}

#[test]
fn urls_have_a_bucket_and_a_key() {
    let url = Path::new("s3://traffic/2026/monday/capture.json");
    assert_eq!(split(url).unwrap(), (Provider::S3, "traffic", "2026/monday/capture.json"));
    assert_eq!(object_path(url).unwrap().as_ref(), "2026/monday/capture.json");
    assert_eq!(object_path(Path::new("gs://traffic")).unwrap().as_ref(), "");
    assert_eq!(object_path(Path::new("az://traffic/a/")).unwrap().as_ref(), "a");
    let error = split(Path::new("s3:///monday")).unwrap_err().to_string();
    assert_eq!(error, "s3:///monday is not valid: write s3://BUCKET/PREFIX");
}
