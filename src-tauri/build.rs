//! Lists our commands for the permission system: what is not in `capabilities/main.json` cannot be called.

fn main() {
    let names: Vec<&str> = foretoken_protocol::COMMANDS.iter().map(|c| c.name).collect();
    let manifest = tauri_build::AppManifest::new().commands(names.leak());
    tauri_build::try_build(tauri_build::Attributes::new().app_manifest(manifest))
        .expect("tauri.conf.json is ours");
}
