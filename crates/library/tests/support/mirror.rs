//! A stand-in for the hub and its file server, which are two addresses as with the real one, with faults on demand.

use super::http::{self, After, Request};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// From this size on a file is "large": named by its sha256 and served by the file server.
pub const LARGE: u64 = 2000;

#[derive(Clone)]
pub enum Content {
    Bytes(Arc<Vec<u8>>),
    Disk(PathBuf),
    /// Listed and never served.
    Claimed,
}

#[derive(Clone)]
pub struct Served {
    pub size: u64,
    pub sha256: String,
    pub git: String,
    pub content: Content,
}

#[derive(Default)]
pub struct Repo {
    pub commit: String,
    pub gated: bool,
    pub private: bool,
    pub files: BTreeMap<String, Served>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    Api,
    Resolve,
    Bytes,
}

#[derive(Clone, Debug)]
pub enum Kind {
    /// Another answer: status, Retry-After, type, body.
    Status(u16, Option<&'static str>, &'static str, &'static str),
    /// The line breaks after so many bytes.
    Drop(u64),
    /// Nothing more for so long.
    Stall(u64, Duration),
    /// One byte is flipped, counted from the file's start.
    WrongByte(u64),
    /// Fewer bytes than asked for, announced so.
    Short(u64),
    /// The range is ignored.
    NoRange,
    /// A range that was not asked for.
    OtherRange,
    /// No Content-Length; the end of the connection is the end.
    NoLength,
    /// As if the file had been replaced.
    OtherTag,
    /// Redirects to this place.
    Redirect(String),
}

#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub stage: Stage,
    /// End of the path it concerns.
    pub file: &'static str,
    pub skip: usize,
    pub times: usize,
}

impl Fault {
    pub fn new(stage: Stage, file: &'static str, kind: Kind) -> Self {
        Self { kind, stage, file, skip: 0, times: 1 }
    }

    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }
}

#[derive(Clone, Debug)]
pub struct Logged {
    pub path: String,
    pub range: Option<String>,
    pub auth: bool,
    pub on_hub: bool,
    pub status: u16,
    pub sent: u64,
}

#[derive(Default)]
pub struct State {
    pub repos: BTreeMap<String, Repo>,
    pub token: Option<&'static str>,
    pub faults: Vec<Fault>,
    pub log: Vec<Logged>,
    pub page: usize,
    /// Bytes per second and connection.
    pub throttle: Option<u64>,
    hub: u16,
    files: u16,
}

pub struct Mirror {
    pub state: Arc<Mutex<State>>,
    pub endpoint: String,
}

impl Mirror {
    pub fn new() -> Self {
        let state = Arc::new(Mutex::new(State { page: 1000, ..State::default() }));
        let handler: Arc<http::Handler> = {
            let state = Arc::clone(&state);
            Arc::new(move |request, out| answer(&state, request, out))
        };
        let (hub, files) = (http::listen(Arc::clone(&handler)), http::listen(handler));
        {
            let mut state = state.lock().expect("no test panics with it");
            (state.hub, state.files) = (hub, files);
        }
        Self { state, endpoint: format!("http://127.0.0.1:{hub}") }
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().expect("no test panics with it"))
    }

    pub fn add(&self, repo: &str, path: &str, bytes: Vec<u8>) {
        let size = bytes.len() as u64;
        let git =
            hex(&Sha1::digest([format!("blob {size}\0").into_bytes(), bytes.clone()].concat()));
        let sha256 = hex(&Sha256::digest(&bytes));
        self.put(repo, path, Served { size, sha256, git, content: Content::Bytes(bytes.into()) });
    }

    pub fn put(&self, repo: &str, path: &str, file: Served) {
        self.with(|state| {
            let repo = state.repos.entry(repo.to_owned()).or_default();
            repo.files.insert(path.to_owned(), file);
            // A push makes another commit.
            let names: Vec<_> = repo.files.iter().map(|(p, f)| format!("{p} {}", f.git)).collect();
            repo.commit = hex(&Sha1::digest(names.join("\n")));
        });
    }

    pub fn fault(&self, fault: Fault) {
        self.with(|state| state.faults.push(fault));
    }

    pub fn log(&self) -> Vec<Logged> {
        self.with(|state| state.log.clone())
    }

    /// Bytes of files sent so far, without the answers of the API.
    pub fn sent(&self) -> u64 {
        self.sent_since(0)
    }

    /// The same for the requests after the first `n`.
    pub fn sent_since(&self, n: usize) -> u64 {
        let log = self.log();
        log[n..].iter().filter(|row| !row.path.starts_with("/api/")).map(|row| row.sent).sum()
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn fault(state: &mut State, stage: &Stage, path: &str) -> Option<Kind> {
    let hit = |f: &&mut Fault| f.stage == *stage && path.ends_with(f.file) && f.times > 0;
    let fault = state.faults.iter_mut().find(hit)?;
    if fault.skip > 0 {
        fault.skip -= 1;
        return None;
    }
    fault.times -= 1;
    Some(fault.kind.clone())
}

fn answer(shared: &Mutex<State>, request: &Request, out: &mut TcpStream) -> After {
    let mut state = shared.lock().expect("no test panics with it");
    let auth = request.headers.get("authorization").cloned();
    let on_hub = request.port == state.hub;
    let mut row = Logged {
        path: request.path.clone(),
        range: request.headers.get("range").cloned(),
        auth: auth.is_some(),
        on_hub,
        status: 200,
        sent: 0,
    };
    let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    let stage = match parts[0] {
        "api" => Stage::Api,
        _ if on_hub => Stage::Resolve,
        _ => Stage::Bytes,
    };
    let (owner, name) = match stage {
        Stage::Api => (parts.get(2), parts.get(3)),
        _ => (parts.first(), parts.get(1)),
    };
    let id = format!("{}/{}", owner.unwrap_or(&""), name.unwrap_or(&""));
    let is_authorised = auth.is_some() && auth == state.token.map(|t| format!("Bearer {t}"));
    let kind = fault(&mut state, &stage, &request.path);
    if let Some(Kind::Status(status, retry, kind, body)) = kind {
        row.status = status;
        state.log.push(row);
        drop(state);
        let mut headers = vec![("Content-Type", kind.to_owned())];
        headers.extend(retry.map(|after| ("Retry-After", after.to_owned())));
        return http::reply(out, status, &headers, body.as_bytes());
    }
    if let Some(Kind::Redirect(to)) = kind {
        row.status = 302;
        state.log.push(row);
        return http::reply(out, 302, &[("Location", to)], b"");
    }
    let mut fail = |state: &mut State, status: u16, code: &str| {
        row.status = status;
        state.log.push(row.clone());
        http::reply(out, status, &[("X-Error-Code", code.to_owned())], b"{\"error\":\"refused\"}")
    };
    if stage != Stage::Bytes {
        if auth.is_some() && !is_authorised {
            return fail(&mut state, 401, "");
        }
        let Some(repo) = state.repos.get(&id) else {
            return fail(&mut state, if is_authorised { 404 } else { 401 }, "RepoNotFound");
        };
        if repo.private && !is_authorised {
            return fail(&mut state, 401, "RepoNotFound");
        }
        let revision =
            parts.get(if stage == Stage::Api { 5 } else { 3 }).copied().unwrap_or("main");
        if revision != "main" && revision != repo.commit {
            return fail(&mut state, 404, "RevisionNotFound");
        }
        if stage == Stage::Resolve && repo.gated && !is_authorised {
            return fail(&mut state, 403, "GatedRepo");
        }
    }
    let Some(repo) = state.repos.get(&id) else { return fail(&mut state, 404, "") };
    if stage == Stage::Api {
        let (body, link) = match parts.get(4) {
            Some(&"tree") => tree(&state, repo, request),
            _ => (format!("{{\"id\":\"{id}\",\"sha\":\"{}\"}}", repo.commit), None),
        };
        row.sent = body.len() as u64;
        state.log.push(row);
        drop(state);
        let mut headers = vec![("Content-Type", "application/json".to_owned())];
        headers.extend(link.map(|link| ("Link", link)));
        return http::reply(out, 200, &headers, body.as_bytes());
    }
    let path = parts[4..].join("/");
    let Some(file) = repo.files.get(&path).cloned() else {
        return fail(&mut state, 404, "EntryNotFound");
    };
    let tag = match kind {
        Some(Kind::OtherTag) => "ab".repeat(file.sha256.len() / 2),
        _ if file.size >= LARGE => file.sha256.clone(),
        _ => file.git.clone(),
    };
    if stage == Stage::Resolve && file.size >= LARGE {
        row.status = 302;
        let to = format!("http://127.0.0.1:{}{}?signature=secret", state.files, request.path);
        state.log.push(row);
        let headers = [
            ("Location", to),
            ("X-Linked-ETag", format!("\"{tag}\"")),
            ("X-Linked-Size", file.size.to_string()),
            ("X-Repo-Commit", parts[3].to_owned()),
        ];
        return http::reply(out, 302, &headers, b"");
    }
    // Large files have a tag of the file server's own, as with the real one.
    let tag = if stage == Stage::Bytes { "0-17".to_owned() } else { tag };
    let throttle = state.throttle;
    let at = state.log.len();
    state.log.push(row);
    drop(state);
    let (status, sent, after) = send(&file, &tag, kind, throttle, request, out, |sent| {
        shared.lock().expect("no test panics with it").log[at].sent = sent;
    });
    let mut state = shared.lock().expect("no test panics with it");
    state.log[at].status = status;
    state.log[at].sent = sent;
    after
}

fn tree(state: &State, repo: &Repo, request: &Request) -> (String, Option<String>) {
    let start: usize = request.query.get("cursor").and_then(|c| c.parse().ok()).unwrap_or(0);
    let rows: Vec<String> = repo
        .files
        .iter()
        .skip(start)
        .take(state.page)
        .map(|(path, f)| {
            let path = serde_json::to_string(path).expect("text");
            let lfs = match f.size >= LARGE {
                true => format!(",\"lfs\":{{\"oid\":\"{}\",\"size\":{}}}", f.sha256, f.size),
                false => String::new(),
            };
            format!(
                "{{\"type\":\"file\",\"oid\":\"{}\",\"size\":{},\"path\":{path}{lfs}}}",
                f.git, f.size
            )
        })
        .collect();
    let end = start + rows.len();
    let link = (end < repo.files.len()).then(|| {
        format!(
            "<http://127.0.0.1:{}{}?recursive=true&cursor={end}>; rel=\"next\"",
            state.hub, request.path
        )
    });
    (format!("[{}]", rows.join(",")), link)
}

/// Status, bytes sent, what becomes of the connection.
fn send(
    file: &Served,
    tag: &str,
    kind: Option<Kind>,
    throttle: Option<u64>,
    request: &Request,
    out: &mut TcpStream,
    progress: impl Fn(u64),
) -> (u16, u64, After) {
    let range = request.headers.get("range").and_then(|r| {
        let (first, last) = r.strip_prefix("bytes=")?.split_once('-')?;
        let last: Option<u64> = last.parse().ok();
        Some(first.parse().ok()?..last.map_or(file.size, |l| (l + 1).min(file.size)))
    });
    let range = if matches!(kind, Some(Kind::NoRange)) { None } else { range };
    if range.as_ref().is_some_and(|r| r.start >= file.size) {
        let range = [("Content-Range", format!("bytes */{}", file.size))];
        return (416, 0, http::reply(out, 416, &range, b""));
    }
    let status = if range.is_some() { 206 } else { 200 };
    let mut range = range.unwrap_or(0..file.size);
    if let Some(Kind::Short(n)) = kind {
        range.end = range.end.min(range.start + n);
    }
    let mut headers =
        vec![("ETag", format!("\"{tag}\"")), ("Content-Type", "application/octet-stream".into())];
    if status == 206 {
        let shift = u64::from(matches!(kind, Some(Kind::OtherRange)));
        let (first, last) = (range.start + shift, range.end - 1 + shift);
        headers.push(("Content-Range", format!("bytes {first}-{last}/{}", file.size)));
    }
    let no_length = matches!(kind, Some(Kind::NoLength));
    match no_length {
        true => headers.push(("Connection", "close".into())),
        false => headers.push(("Content-Length", (range.end - range.start).to_string())),
    }
    if !http::head(out, status, &headers) {
        return (status, 0, After::Close);
    }
    if let (Content::Disk(path), None, None) = (&file.content, &kind, throttle) {
        // The kernel copies: the server should not be what a measurement measures.
        let mut part = File::open(path).expect("a file of the test");
        part.seek(SeekFrom::Start(range.start)).expect("inside of the file");
        let sent = std::io::copy(&mut part.take(range.end - range.start), out).unwrap_or(0);
        let after = if sent == range.end - range.start { After::Keep } else { After::Close };
        return (status, sent, after);
    }
    let (sent, whole) = send_pieces(file, range, kind, throttle, out, progress);
    (status, sent, if whole && !no_length { After::Keep } else { After::Close })
}

fn send_pieces(
    file: &Served,
    range: std::ops::Range<u64>,
    kind: Option<Kind>,
    throttle: Option<u64>,
    out: &mut TcpStream,
    progress: impl Fn(u64),
) -> (u64, bool) {
    let mut at = range.start;
    let sent = |at: u64| at - range.start;
    while at < range.end {
        let piece = throttle.map_or(1 << 16, |rate| (rate / 50).clamp(64, 1 << 16));
        let mut end = range.end.min(at + piece);
        match kind {
            Some(Kind::Drop(after)) if sent(at) >= after => return (sent(at), false),
            Some(Kind::Stall(after, length)) if sent(at) >= after => {
                std::thread::sleep(length);
                return (sent(at), false);
            }
            Some(Kind::Drop(after) | Kind::Stall(after, _)) => end = end.min(range.start + after),
            _ => {}
        }
        let mut bytes = bytes_of(file, at..end);
        if let Some(Kind::WrongByte(wrong)) = kind
            && (at..end).contains(&wrong)
        {
            bytes[(wrong - at) as usize] ^= 0xff;
        }
        if out.write_all(&bytes).is_err() {
            return (sent(at), false);
        }
        at = end;
        progress(sent(at));
        if let Some(rate) = throttle {
            std::thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
        }
    }
    (sent(at), true)
}

fn bytes_of(file: &Served, range: std::ops::Range<u64>) -> Vec<u8> {
    match &file.content {
        Content::Bytes(bytes) => bytes[range.start as usize..range.end as usize].to_vec(),
        Content::Disk(path) => {
            let mut part = File::open(path).expect("a file of the test");
            part.seek(SeekFrom::Start(range.start)).expect("inside of the file");
            let mut bytes = vec![0; (range.end - range.start) as usize];
            part.read_exact(&mut bytes).expect("inside of the file");
            bytes
        }
        Content::Claimed => vec![0; (range.end - range.start) as usize],
    }
}
