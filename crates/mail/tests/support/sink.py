"""An SMTP server for tests: takes mail as real ones do, and misbehaves on request.

Prints one JSON line per event: first the ports, then connections and messages. Ends with its
standard input. How it answers is written in the recipient's address (before the @):

    code-451-2         this code to the first two who ask, then all is well (0: always)
    code-421-1-slow    the same, with words that ask for a pause
    code-450-0-busy    the same, with such words about the recipient only
    body-451-1         the same, said after the message instead of after the recipient
    stall              no answer, for ever; stall-1: only to the first who ask
    drop               the connection is closed; drop-1: likewise
    bye                the message is taken, and soon after the connection is closed
    full-1             the message is taken, and the next sender is told that it is too much and cut off;
                       full-2: the next two
    odd-1              250 instead of 354 to the first who want to send the message
    late-250           the message is taken after so many milliseconds
    latin              the message is taken, in words that are not UTF-8
    latin-550          this code to the recipient, in such words
    short              the message is taken, with a code and no words
    flood              bytes without an end, and without a line's end, instead of an answer
"""

import asyncio
import json
import logging
import ssl
import sys
import time
from collections import Counter
from email import message_from_bytes, policy

from aiosmtpd.smtp import SMTP, AuthResult

USER, PASSWORD = b"ada", b"open sesame"
WORDS = {
    "slow": "4.7.0 too many messages, slow down",
    "busy": "4.2.1 the user receives mail at a rate that is too much, try again later",
}

# What it does is printed; what clients do to it is the test's matter.
logging.disable()

asked = Counter()
connections = 0
cut_off = 0


def say(**event):
    print(json.dumps({"at": time.time(), **event}), flush=True)


class Conversation(SMTP):
    def connection_made(self, transport):
        # Also called again when STARTTLS is done.
        global connections
        if not hasattr(self, "number"):
            connections += 1
            self.number = connections
            say(event="connect", connection=self.number)
        super().connection_made(transport)

    async def smtp_DATA(self, arg):
        for address in self.envelope.rcpt_tos:
            kind, *words = address.split("@")[0].split("-")
            if kind == "odd" and is_turn(address, int(words[0])):
                return await self.push("250 2.0.0 fine")
        await super().smtp_DATA(arg)

    def connection_lost(self, error):
        say(event="disconnect", connection=self.number)
        super().connection_lost(error)


def is_turn(address, times):
    """Whether this is one of the first times this is asked for."""
    asked[address] += 1
    return times == 0 or asked[address] <= times


async def misbehave(server, address, stage, message_id=None):
    """The answer to give instead of the right one, if any."""
    kind, *words = address.split("@")[0].split("-")
    if kind in ("code", "body") and (kind == "code") == (stage == "RCPT"):
        code, times = words[0], int(words[1])
        if is_turn(address, times):
            text = WORDS.get(words[2]) if len(words) > 2 else "as the test asked"
            say(event="refused", connection=server.number, address=address, code=int(code),
                message_id=message_id)
            return f"{code} {text}"
    if kind in ("stall", "drop") and stage == "RCPT":
        times = int(words[0]) if words else 0
        if is_turn(address, times):
            say(event=kind, connection=server.number, address=address)
            if kind == "stall":
                await asyncio.sleep(3600)
            server.transport.abort()
            await asyncio.sleep(3600)
    if kind == "latin" and words and stage == "RCPT":
        return f"{words[0]} f\xfcr".encode("latin-1")
    if kind == "flood" and stage == "RCPT":
        say(event="flood", connection=server.number, address=address)
        try:
            while True:
                server.transport.write(b"x" * 65536)
                await server._writer.drain()
        except ConnectionError:
            return "421 gone"
    if kind == "late" and stage == "DATA":
        say(event="late", connection=server.number, address=address)
        await asyncio.sleep(int(words[0]) / 1000)
    return None


class Handler:
    async def handle_MAIL(self, server, session, envelope, address, options):
        global cut_off
        if cut_off > 0:
            cut_off -= 1
            asyncio.get_running_loop().call_soon(server.transport.close)
            return "421 4.7.0 too many messages in this connection"
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):
        answer = await misbehave(server, address, "RCPT")
        if answer is not None:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = message_from_bytes(envelope.content, policy=policy.default)
        for address in envelope.rcpt_tos:
            answer = await misbehave(server, address, "DATA", message["message-id"])
            if answer is not None:
                return answer
        parts = [
            {
                "type": part.get_content_type(),
                "filename": part.get_filename(),
                "content": part.get_content()
                if part.get_content_maintype() == "text"
                else part.get_payload(decode=True).hex(),
            }
            for part in message.walk()
            if not part.is_multipart()
        ]
        user = session.auth_data.login.decode() if session.authenticated else None
        say(
            event="message",
            connection=server.number,
            sender=envelope.mail_from,
            recipients=envelope.rcpt_tos,
            headers={name.lower(): str(value) for name, value in message.items()},
            parts=parts,
            tls=server.transport.get_extra_info("cipher") is not None,
            user=user,
        )
        if envelope.rcpt_tos[0].startswith("bye@"):
            asyncio.get_running_loop().call_later(0.05, server.transport.close)
        kind, *words = envelope.rcpt_tos[0].split("@")[0].split("-")
        if kind == "full":
            global cut_off
            cut_off = int(words[0])
        answers = {"latin": "250 f\xfcr".encode("latin-1"), "short": "250"}
        return answers.get(kind, "250 2.0.0 taken")


def authenticate(server, session, envelope, mechanism, login):
    right = login.login == USER and login.password == PASSWORD
    return AuthResult(success=right, handled=False, auth_data=login)


async def main(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    common = {"enable_SMTPUTF8": True, "timeout": 3600, "authenticator": authenticate,
              "auth_require_tls": False, "hostname": "sink.test", "data_size_limit": None}
    loop = asyncio.get_running_loop()

    async def listen(tls=None, **options):
        def start():
            return Conversation(Handler(), **common, **options)
        server = await loop.create_server(start, "127.0.0.1", 0, ssl=tls)
        return server.sockets[0].getsockname()[1]

    ports = {
        "plain": await listen(),
        "starttls": await listen(tls_context=context, require_starttls=True),
        "implicit": await listen(tls=context),
    }
    say(event="ready", **ports)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
