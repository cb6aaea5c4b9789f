//! Just enough of an HTTP/1.1 server: a thread a connection, connections stay open.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

pub struct Request {
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    /// Which of the two listeners it came in by.
    pub port: u16,
}

/// What to do with the connection after an answer.
#[derive(PartialEq, Eq)]
pub enum After {
    Keep,
    Close,
}

pub type Handler = dyn Fn(&Request, &mut TcpStream) -> After + Send + Sync;

pub fn listen(handler: Arc<Handler>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || serve(stream, port, &*handler));
        }
    });
    port
}

fn serve(stream: TcpStream, port: u16, handler: &Handler) {
    let _ = stream.set_nodelay(true);
    let Ok(mut out) = stream.try_clone() else { return };
    let mut lines = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line) {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let target = head[0].split(' ').nth(1).unwrap_or("/").to_owned();
        // Through a proxy, the whole address is asked for.
        let target = match target.strip_prefix("http://") {
            Some(rest) => format!("/{}", rest.split_once('/').map_or("", |(_, path)| path)),
            None => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let request = Request {
            path: decode(path),
            query: query
                .split('&')
                .filter_map(|p| p.split_once('='))
                .map(|(k, v)| (k.to_owned(), decode(v)))
                .collect(),
            headers: head[1..]
                .iter()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
                .collect(),
            port,
        };
        if handler(&request, &mut out) == After::Close {
            let _ = out.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

pub fn head(out: &mut TcpStream, status: u16, headers: &[(&str, String)]) -> bool {
    let mut text = format!("HTTP/1.1 {status} x\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    out.write_all(text.as_bytes()).is_ok()
}

pub fn reply(out: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) -> After {
    let mut headers = headers.to_vec();
    headers.push(("Content-Length", body.len().to_string()));
    match head(out, status, &headers) && out.write_all(body).is_ok() {
        true => After::Keep,
        false => After::Close,
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let hex = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
            let hex = std::str::from_utf8(&hex).unwrap_or("00");
            out.push(u8::from_str_radix(hex, 16).unwrap_or(0));
        } else {
            out.push(b);
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
