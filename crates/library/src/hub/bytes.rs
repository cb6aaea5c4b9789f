//! Bytes of a file, by range. Nothing but the bytes asked for gets through.

use super::client::Answer;
use super::fault::{About, host};
use super::{ContentId, Hub, HubError, Listing, RemoteFile};
use reqwest::StatusCode;
use std::ops::Range;

/// The body of an accepted answer: bytes from the start of the range on, at most to its end.
pub(crate) struct Body {
    hub: Hub,
    answer: Answer,
    file: String,
    left: u64,
}

impl Hub {
    /// Opens `range` of a file. An answer from the file's start is accepted only for a range that begins there.
    pub(crate) async fn open_range(
        &self,
        listing: &Listing,
        file: &RemoteFile,
        range: Range<u64>,
    ) -> Result<Body, HubError> {
        let whole = range == (0..file.size);
        let mut parts = vec![listing.repo.owner(), listing.repo.name(), "resolve", &listing.commit];
        parts.extend(file.path.split('/'));
        let about =
            About { repo: &listing.repo, revision: &listing.commit, file: Some(&file.path) };
        let asked = (!whole).then(|| range.clone());
        let answer = self.open(self.address(&parts), asked, about).await?;
        let wrong = || HubError::WrongRange { file: file.path.clone() };
        let changed = || HubError::Changed { file: file.path.clone() };

        let tag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
        if tag.is_some_and(|tag| names_other_content(tag, &file.id)) {
            return Err(changed());
        }
        let html = answer.header("content-type").is_some_and(|t| t.starts_with("text/html"));
        if html && !file.path.ends_with(".html") {
            let host = host(&answer.url);
            return Err(HubError::NotTheHub { host, why: "it sends a page instead of the file" });
        }
        let linked: Option<u64> = answer.header("x-linked-size").and_then(|n| n.parse().ok());
        if linked.is_some_and(|size| size != file.size) {
            return Err(changed());
        }
        let end = match answer.response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let got = answer.header("content-range").and_then(content_range);
                let (at, total) = got.ok_or_else(wrong)?;
                if total.is_some_and(|total| total != file.size) {
                    return Err(changed());
                }
                // A server may send less than asked for; whoever reads asks for the rest.
                if at.start != range.start || at.is_empty() || at.end > range.end {
                    return Err(wrong());
                }
                at.end
            }
            // Another length than the file's is an error page or a cut answer, and no part of the file for certain.
            StatusCode::OK
                if range.start == 0
                    && answer.response.content_length().is_none_or(|n| n == file.size) =>
            {
                range.end
            }
            _ => return Err(wrong()),
        };
        let left = end - range.start;
        Ok(Body { hub: self.clone(), answer, file: file.path.clone(), left })
    }

    /// A range of a file in memory.
    pub(crate) async fn read_range(
        &self,
        listing: &Listing,
        file: &RemoteFile,
        range: Range<u64>,
    ) -> Result<Vec<u8>, HubError> {
        self.patiently(|| async {
            let mut out = Vec::new();
            let mut at = range.start;
            while at < range.end {
                let mut body = self.open_range(listing, file, at..range.end).await?;
                while let Some(chunk) = body.next().await? {
                    at += chunk.len() as u64;
                    out.extend_from_slice(&chunk);
                }
            }
            Ok(out)
        })
        .await
    }
}

impl Body {
    /// The next bytes; `None` after the last one promised.
    pub async fn next(&mut self) -> Result<Option<Chunk>, HubError> {
        if self.left == 0 {
            return Ok(None);
        }
        let answer = &mut self.answer;
        let chunk =
            answer.response.chunk().await.map_err(|e| self.hub.line_error(&answer.url, e))?;
        let Some(mut chunk) = chunk else {
            return Err(HubError::Dropped {
                host: host(&answer.url),
                why: format!("{} ended {} bytes early", self.file, self.left),
            });
        };
        // A server that ignores the end of a range sends on; what was not asked for is not taken.
        if chunk.len() as u64 > self.left {
            chunk.truncate(usize::try_from(self.left).expect("less than a chunk's length"));
        }
        self.left -= chunk.len() as u64;
        Ok(Some(chunk))
    }
}

pub(crate) type Chunk = bytes::Bytes;

/// An entity tag that is a content id (40 or 64 hex digits), but another one. Other tags say nothing here: file
/// servers have tags of their own.
fn names_other_content(tag: &str, id: &ContentId) -> bool {
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    tag.len() == id.hex().len()
        && tag.chars().all(|c| c.is_ascii_hexdigit())
        && !tag.eq_ignore_ascii_case(id.hex())
}

/// `bytes 5-9/20` as `(5..10, Some(20))`.
fn content_range(value: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((first.parse().ok()?..last.checked_add(1)?, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_content_ranges_and_tags() {
        assert_eq!(content_range("bytes 5-9/20"), Some((5..10, Some(20))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0..1, None)));
        for bad in ["", "bytes */20", "bytes 5-/20", "5-9/20", "bytes 5-18446744073709551615/1"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
        let id = ContentId::Sha256("ab".repeat(32));
        assert!(names_other_content(&format!("\"{}\"", "cd".repeat(32)), &id));
        assert!(!names_other_content(&format!("W/\"{}\"", "AB".repeat(32)), &id));
        assert!(!names_other_content("\"0123456789abcdef-17\"", &id));
    }
}
