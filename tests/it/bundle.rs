//! `debug-bundle` with secrets planted everywhere: none is in the archive, in any form.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::world::{World, trial};

/// Named by a step; of the environment; in settings; in a workflow's `env`; in a credential.
const DECLARED: &str = "d3clared/\"quöted\"+value";
const TOKEN: &str = "an-environment-value-4711";
const SETTING: &str = "in-the-settings-0815";
const INLINE: &str = "in-the-workflow-1234";
const CREDENTIAL: &str = "of-systemd-5678";
/// Given with `--context` under the name of a secret.
const GIVEN: &str = "by-the-context-4242";
/// Known to nobody, but by its shape.
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
const KEY_LINE: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC";

const WORKFLOW: &str = r#"
version: "1.1"
context: { password: "in-the-context-9999" }
steps:
  - name: Print
    command: [sh, print.sh]
    secrets: [DEPLOY]
    env: { UPLOAD_TOKEN: "in-the-workflow-1234" }
"#;

/// What the engine masks itself is printed too: it must stay so.
const PRINT: &str = r#"
echo "token $GITHUB_TOKEN"; echo "token $GITHUB_TOKEN" >&2
printf '%s' "$GITHUB_TOKEN" | base64; printf 'user:%s' "$GITHUB_TOKEN" | base64 -w 10
printf '%s' "$GITHUB_TOKEN" | od -An -tx1 | tr -d ' \n'; echo
echo "$UPLOAD_TOKEN $DEPLOY"
echo '{"nested":"{\"api_key\":\"only-its-name-tells\"}"}'
cat shaped.txt >&2
"#;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bundle: planted secrets are nowhere in it", planted),
        trial("bundle: odd files and wrong settings do not stop it", odd),
    ]
}

fn world() -> World {
    let world = World::with(WORKFLOW);
    world.write("print.sh", PRINT);
    world.write(
        "shaped.txt",
        format!(
            "a {SHAPED} b\nhttps://me:pa55word-in-url@host/x\nBearer abcdefgh12345678\n\
             -----BEGIN PRIVATE KEY-----\n{KEY_LINE}\n-----END PRIVATE KEY-----\n"
        ),
    );
    let settings = format!("default_provider: offline\n# webhook_token: {SETTING}\n");
    world.write(".orchestrate/config.yaml", settings);
    world.write("credentials/PACKAGE", CREDENTIAL);
    world
}

fn orchestrate(world: &World, arguments: &[&str]) -> crate::world::Outcome {
    let mut command = world.orchestrate(arguments);
    command
        .env("GITHUB_TOKEN", TOKEN)
        .env("DEPLOY", DECLARED)
        .env("CREDENTIALS_DIRECTORY", world.path("credentials"));
    world.spawn(&mut command).wait()
}

/// The archive without its compression, names and all.
fn unpacked(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(File::open(file).expect("an archive"));
    reader.read_to_end(&mut bytes).expect("a whole archive");
    bytes
}

fn contains(hay: &[u8], needle: &str) -> bool {
    hay.windows(needle.len()).any(|window| window == needle.as_bytes())
}

fn planted() {
    let world = world();
    let (extra, given) = (format!("extra={TOKEN}"), format!("db_password={GIVEN}"));
    let context = ["--context", &extra, "--context", &given];
    orchestrate(&world, &[&["--quiet", "run", "w.yaml"], &context[..]].concat()).exits(0);
    let root = format!(".orchestrate/runs/{}", world.run_id());
    let escaped = serde_json::to_string(DECLARED).unwrap();
    let log = format!(
        "{TOKEN}\n{SETTING} {INLINE} {CREDENTIAL} {GIVEN}\n{escaped}\n{SHAPED}\n{DECLARED}\n"
    );
    world.write(&format!("{root}/logs/by-hand.txt"), &log);
    world.write(&format!("{root}/logs/{TOKEN}.txt"), "a name");
    // Cut in the middle, with a secret at every place where that may be.
    world.write(&format!("{root}/logs/long.txt"), format!("{TOKEN} {SHAPED} ").repeat(40_000));
    world.write(&format!("inbox/engineer/{TOKEN}.task"), "dropped");
    let kept = world.read(&format!("{root}/state.json"));
    assert!(kept.contains(TOKEN) && kept.contains("only-its-name-tells"), "they are there: {kept}");
    let made = orchestrate(&world, &["--json", "debug-bundle", "-o", "b.tar.gz"]).exits(0);
    let told: Value = serde_json::from_str(&made.stdout).expect("a document");
    assert_eq!(told["schema"], "debug-bundle/v1");
    let path = |part: &Value| part["path"].as_str().unwrap_or_default().to_owned();
    let parts: Vec<String> = told["files"].as_array().unwrap().iter().map(path).collect();
    for part in
        ["versions.json", "doctor.json", "fsck.json", "environment-names.txt", "listing.txt"]
    {
        assert!(parts.iter().any(|path| path == part), "{part} in {parts:?}");
    }
    for part in ["state.json", "journal.jsonl", "workflow.yaml.json"] {
        assert!(parts.iter().any(|path| path.ends_with(part)), "{part} in {parts:?}");
    }
    let bytes = unpacked(&world.path("b.tar.gz"));
    let all = [
        TOKEN,
        DECLARED,
        SETTING,
        INLINE,
        CREDENTIAL,
        SHAPED,
        GIVEN,
        KEY_LINE,
        "in-the-context-9999",
    ];
    let parts_of =
        ["environment-value", "d3clared", "pa55word", "only-its-name-tells", "abcdefgh1234"];
    let encoded = ["YW4tZW52aXJvbm1lbnQt", "616e2d656e76", "uZCI6", "W52aXJvbm"];
    for secret in all.iter().chain(&parts_of).chain(&encoded) {
        assert!(!contains(&bytes, secret), "`{secret}` is in the bundle");
        assert!(!made.stdout.contains(secret), "`{secret}` is told");
    }
    assert!(contains(&bytes, "GITHUB_TOKEN"), "names are told");
    let mode = fs::metadata(world.path("b.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads it");
    // Any machine can open it.
    let listed = world.spawn(world.command("tar").args(["tzf", "b.tar.gz"])).wait().exits(0);
    assert_eq!(listed.stdout.lines().count(), parts.len() + 1, "{}", listed.stdout);
    orchestrate(&world, &["debug-bundle", "-o", "b.tar.gz"]).exits(2).says("is there already");
    assert_eq!(unpacked(&world.path("b.tar.gz")), bytes, "it was not written over");
}

fn odd() {
    let world = world();
    orchestrate(&world, &["--quiet", "run", "w.yaml"]).exits(0);
    let logs = format!(".orchestrate/runs/{}/logs", world.run_id());
    world.write("outside.txt", "not to be followed");
    std::os::unix::fs::symlink(world.path("outside.txt"), world.path(&format!("{logs}/link")))
        .unwrap();
    nix::unistd::mkfifo(&world.path(&format!("{logs}/pipe")), nix::sys::stat::Mode::S_IRWXU)
        .unwrap();
    let huge = File::create(world.path(&format!("{logs}/huge"))).unwrap();
    huge.set_len(64 << 30).unwrap();
    world.write(".orchestrate/config.yaml", "no_such_field: 1\n");
    let made = orchestrate(&world, &["debug-bundle", "latest", "-o", "b.tar.gz"]).exits(0);
    assert!(made.stderr.contains("without settings: they are invalid"), "{}", made.stderr);
    let bytes = unpacked(&world.path("b.tar.gz"));
    assert!(!contains(&bytes, "not to be followed"));
    assert!(contains(&bytes, "no_such_field"), "names of settings are in it");
    orchestrate(&world, &["debug-bundle", "2020"]).exits(2).says("there is no run `2020`");
    orchestrate(&world, &["debug-bundle", "-o", "no/such/dir.tar.gz"])
        .exits(1)
        .says("cannot write");
}
