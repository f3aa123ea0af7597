//! Connects to a bucket with the settings in the environment.

use std::{
    env, io,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use object_store::{
    BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
};

use super::{Provider, error};

/// How failed requests are retried: a store may be away for a few minutes.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 1_000,
        retry_timeout: Duration::from_secs(280),
    }
}

/// Returns the client of a bucket.
///
/// # Errors
///
/// The settings in the environment are invalid. Credentials are not checked.
pub(super) fn connect(provider: Provider, bucket: &str) -> io::Result<Arc<dyn ObjectStore>> {
    // Fails if the program has already installed a provider, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built: object_store::Result<Arc<dyn ObjectStore>> = match provider {
        Provider::S3 => return s3(bucket),
        Provider::Google => GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retries())
            .build()
            .map(|store| Arc::new(store) as _),
        Provider::Azure => MicrosoftAzureBuilder::from_env()
            .with_container_name(bucket)
            .with_retry(retries())
            .build()
            .map(|store| Arc::new(store) as _),
    };
    built.map_err(|error| error::convert(provider, &error))
}

fn s3(bucket: &str) -> io::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
    let endpoint = env::var("AWS_ENDPOINT_URL_S3")
        .ok()
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.starts_with("http://")) {
        let allow_http = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
        let is_allowed = builder.get_config_value(&allow_http).is_some_and(|value| value == "true");
        if !is_allowed && !is_loopback(&endpoint) {
            return Err(io::Error::other(
                "AWS_ENDPOINT_URL uses http, which sends data unencrypted: use https, or set \
                 AWS_ALLOW_HTTP=true",
            ));
        }
        builder = builder.with_allow_http(true);
    }
    if !has_credentials() && !has_instance_metadata() {
        return Err(error::no_credentials(Provider::S3));
    }
    let built = builder.build();
    built.map(|store| Arc::new(store) as _).map_err(|error| error::convert(Provider::S3, &error))
}

/// Whether a variable names a source of credentials for S3.
fn has_credentials() -> bool {
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_METADATA_ENDPOINT",
        "AWS_SKIP_SIGNATURE",
    ]
    .iter()
    .any(|name| env::var_os(name).is_some())
}

/// Whether this machine has a service for the credentials of its role. Asking for them where there
/// is none would be repeated for minutes.
fn has_instance_metadata() -> bool {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let service = SocketAddr::from(([169, 254, 169, 254], 80));
    TcpStream::connect_timeout(&service, TIMEOUT).is_ok()
}

/// Whether the host of an `http` URL is this machine.
fn is_loopback(url: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(host) => host.split_once(']').map_or(host, |(host, _)| host),
        None => host.split_once(':').map_or(host, |(host, _)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[test]
fn only_this_machine_is_loopback() {
    for host in ["localhost:9000", "127.0.0.1", "[::1]:9000/", "127.1.2.3:1/a"] {
        assert!(is_loopback(&format!("http://{host}")), "{host}");
    }
    for host in ["minio:9000", "10.0.0.1", "localhost.example", "127.0.0.1@minio"] {
        assert!(!is_loopback(&format!("http://{host}")), "{host}");
    }
}
