//! The releases that are fetched, and the SHA-256 of their archives. The checksums that the
//! repository publishes protect only against damage: an attacker would replace them, too.
//!
//! For a new release, take the archive's checksum from the repository's `.jar.sha256` and compare
//! it with that of a download over another network.

/// A pinned release of a major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PinnedRelease {
    /// Version in the repository.
    pub(super) version: &'static str,
    /// SHA-256 of the archive, in hexadecimal.
    pub(super) sha256: &'static str,
}

/// The releases by major: for x86-64, and for arm64.
const RELEASES: [(u32, PinnedRelease, PinnedRelease); 5] = [
    (
        14,
        PinnedRelease {
            version: "14.24.0",
            sha256: "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4",
        },
        PinnedRelease {
            version: "14.23.0",
            sha256: "a55b93f67051a602be033b298461709f88789dccee925236f2fb5a4eaf9dd526",
        },
    ),
    (
        15,
        PinnedRelease {
            version: "15.19.0",
            sha256: "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
        },
        PinnedRelease {
            version: "15.19.0",
            sha256: "95baf4bd4af31b91b3050118df59388ed0064756b556b850669e0300aa7b9911",
        },
    ),
    (
        16,
        PinnedRelease {
            version: "16.15.0",
            sha256: "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2",
        },
        PinnedRelease {
            version: "16.15.0",
            sha256: "f846a9989d686b7977d6eca9bc9d8b2b69e3f70c7eb60e032197d9c574a6136c",
        },
    ),
    (
        17,
        PinnedRelease {
            version: "17.11.0",
            sha256: "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
        },
        PinnedRelease {
            version: "17.11.0",
            sha256: "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
        },
    ),
    (
        18,
        PinnedRelease {
            version: "18.6.0",
            sha256: "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
        },
        PinnedRelease {
            version: "18.4.0",
            sha256: "a9ec284923b9a7d2db41509bfb88c3d0eeb9f4aa5e2b29ea0aac5e8dbaf4c335",
        },
    ),
];

/// Returns the release of a major for this machine; `None` if none is pinned.
pub(super) fn release(major: u32) -> Option<PinnedRelease> {
    let (_, x86_64, arm64) = RELEASES.into_iter().find(|release| release.0 == major)?;
    match std::env::consts::ARCH {
        "x86_64" => Some(x86_64),
        "aarch64" => Some(arm64),
        _ => None,
    }
}
