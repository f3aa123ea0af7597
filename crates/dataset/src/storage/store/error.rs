//! Errors of object stores, in words that name the cause and what to do, without credentials.

use std::{error::Error as _, io};

use object_store::Error;

use super::Provider;

/// Converts an error of a request. Its text contains neither the body of the response, which may
/// repeat the access key, nor the query of the URL, which may have a signature.
pub(super) fn convert(provider: Provider, error: &Error) -> io::Error {
    let text = with_sources(error);
    let code = element(&text, "Code");
    let is_bucket_missing =
        ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"]
            .iter()
            .any(|code| text.contains(code));
    if is_bucket_missing {
        let (bucket, create) = match provider {
            Provider::S3 => ("bucket", "aws s3 mb"),
            Provider::Google => ("bucket", "gcloud storage buckets create"),
            Provider::Azure => ("container", "az storage container create"),
        };
        return io::Error::other(format!(
            "the {bucket} does not exist: check its name and the endpoint, or create it with \
             `{create}`"
        ));
    }
    let reason = code.map_or(String::new(), |code| format!(" ({code})"));
    match error {
        Error::NotFound { .. } => {
            io::Error::new(io::ErrorKind::NotFound, "there is no such object")
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the store refused the credentials{reason}: check {}", variables(provider)),
        ),
        _ if text.contains("http://169.254.169.254") => no_credentials(provider),
        _ => match code {
            Some(code) => io::Error::other(format!("the store answered {code}")),
            None => io::Error::other(without_queries(&last_cause(error))),
        },
    }
}

/// Returns the error for missing credentials.
pub(super) fn no_credentials(provider: Provider) -> io::Error {
    io::Error::other(format!(
        "there are no credentials, and this machine has no role: set {}",
        variables(provider)
    ))
}

/// Returns the environment variables with the credentials.
fn variables(provider: Provider) -> &'static str {
    match provider {
        Provider::S3 => {
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the bucket's policy"
        }
        Provider::Google => "GOOGLE_APPLICATION_CREDENTIALS and the bucket's permissions",
        Provider::Azure => {
            "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and the container's permissions"
        }
    }
}

fn with_sources(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Returns the text of the innermost cause, such as `Connection refused (os error 111)`.
fn last_cause(error: &Error) -> String {
    let mut last = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        last = cause.to_string();
        source = cause.source();
    }
    if last.contains('<') {
        return "the response is not that of an object store: check the endpoint".to_owned();
    }
    last
}

/// Returns the text of the first XML element with this name, if it is a word.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (word, _) = rest.split_once('<')?;
    let is_word = !word.is_empty() && word.len() <= 64;
    (is_word && word.chars().all(|char| char.is_ascii_alphanumeric())).then_some(word)
}

/// Removes the queries of URLs.
fn without_queries(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('?') {
        Some((url, _)) if url.contains("://") => url,
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn errors_do_not_repeat_credentials() {
    let body = "status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code>\
                <AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId></Error>";
    let denied = Error::PermissionDenied { path: "a".to_owned(), source: body.into() };
    let error = convert(Provider::S3, &denied);
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    assert!(text.starts_with("the store refused the credentials (InvalidAccessKeyId): check AWS_"));
    assert!(!text.contains("AKIDSECRET"), "{text}");
    let signed = "cannot connect to https://a.blob.example/c/b?sig=abc now";
    let generic = Error::Generic { store: "Azure", source: signed.into() };
    let text = convert(Provider::Azure, &generic).to_string();
    assert_eq!(text, "cannot connect to https://a.blob.example/c/b now");
}
