// The page works without this, by loading itself again. With it, parts of it change as the
// workspace does, and logs grow. What somebody has typed or opened stays.
"use strict";
(function () {
  var sign = document.getElementById("live");
  var sent = {};
  function parts(page) { return Array.from(page.querySelectorAll("[data-live]")); }
  parts(document).forEach(function (part) { sent[part.dataset.live] = part.outerHTML; });

  function show(word, how) {
    if (sign) { sign.textContent = word; sign.className = "live " + how; }
  }
  function keep(before, after) {
    before.querySelectorAll("details[id]").forEach(function (one) {
      var other = after.querySelector("#" + CSS.escape(one.id));
      if (other) { other.open = one.open; }
    });
    before.querySelectorAll("input[id], textarea[id]").forEach(function (one) {
      var other = after.querySelector("#" + CSS.escape(one.id));
      if (other && one.value !== one.defaultValue) { other.value = one.value; }
    });
  }
  function change(part) {
    var key = part.dataset.live;
    if (sent[key] === part.outerHTML) { return; }
    sent[key] = part.outerHTML;
    var here = document.querySelector("[data-live='" + key + "']");
    if (!here) { return; }
    var focus = document.activeElement && here.contains(document.activeElement) && document.activeElement.id;
    keep(here, part);
    here.replaceWith(part);
    var again = focus && document.getElementById(focus);
    if (again) { again.focus(); }
  }
  var busy = false, wanted = false, pressed = false;
  // What somebody presses stays under the finger until it is let go: a button that is exchanged
  // between the two is never clicked.
  addEventListener("pointerdown", function () { pressed = true; }, true);
  ["pointerup", "pointercancel", "blur"].forEach(function (end) {
    addEventListener(end, function () {
      if (!pressed) { return; }
      pressed = false;
      if (wanted) { setTimeout(refresh, 200); }
    });
  });
  function refresh() {
    if (document.hidden || busy || pressed) { wanted = true; return; }
    busy = true; wanted = false;
    fetch(location.href, { credentials: "same-origin", redirect: "error" }).then(function (answer) {
      // What came of a form has no page of its own to be looked at again.
      if (answer.status === 405) { return null; }
      if (!answer.ok && answer.status !== 404) { throw new Error(answer.status); }
      return answer.text();
    }).then(function (text) {
      if (text === null) { show("live", "on"); return; }
      if (pressed) { wanted = true; return; }
      var page = new DOMParser().parseFromString(text, "text/html");
      parts(page).forEach(function (part) { change(document.adoptNode(part)); });
      document.title = page.title;
      show("live", "on");
    }).catch(function () { show("not reachable", "off"); }).finally(function () {
      busy = false;
      if (wanted && !pressed) { setTimeout(refresh, 200); }
    });
  }
  document.addEventListener("visibilitychange", function () { if (!document.hidden && wanted) { refresh(); } });

  var stream = new EventSource("/live");
  stream.addEventListener("open", function () { show("live", "on"); refresh(); });
  stream.addEventListener("change", refresh);
  stream.addEventListener("error", function () { show("not reachable", "off"); });

  var log = document.querySelector("[data-follow]");
  if (log) { follow(log); }
  function follow(log) {
    var most = 2000000;
    var tail = new EventSource(log.dataset.follow);
    function at(name) { return document.getElementById("log-" + name); }
    ["stdout", "stderr"].forEach(function (name) {
      tail.addEventListener(name, function (event) {
        var pre = at(name), bottom = innerHeight + scrollY >= document.body.scrollHeight - 80;
        pre.hidden = false;
        pre.append(JSON.parse(event.data));
        if (pre.textContent.length > most) { pre.textContent = pre.textContent.slice(-most / 2); }
        if (bottom) { scrollTo(0, document.body.scrollHeight); }
      });
      tail.addEventListener("reset-" + name, function () { at(name).textContent = ""; });
    });
    tail.addEventListener("end", function () { tail.close(); refresh(); });
  }
  function reveal() {
    var target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
