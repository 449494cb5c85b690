"""English verbs: tables of common ones, and the forms that statements need.

Irregular verbs are spelled out; all others follow the spelling rules. A verb counts as `plain` when the word is hardly
ever a noun or an adjective, so that seeing it is seeing a verb; `doubtful` ones ("force", "state", "play") need their
neighbours to decide.
"""

from __future__ import annotations

# base/past/participle; the last may be left out when it is the past
IRREGULAR_TABLE = """
arise/arose/arisen awake/awoke/awoken be/was/been bear/bore/borne beat/beat/beaten become/became/become begin/began/begun
bend/bent bet/bet bid/bid bind/bound bite/bit/bitten bleed/bled blow/blew/blown break/broke/broken breed/bred bring/brought
broadcast/broadcast build/built burst/burst buy/bought cast/cast catch/caught choose/chose/chosen cling/clung
come/came/come cost/cost creep/crept cut/cut deal/dealt dig/dug do/did/done draw/drew/drawn drink/drank/drunk
drive/drove/driven eat/ate/eaten fall/fell/fallen feed/fed feel/felt fight/fought find/found flee/fled fly/flew/flown
forbid/forbade/forbidden forget/forgot/forgotten forgive/forgave/forgiven freeze/froze/frozen get/got/gotten
give/gave/given go/went/gone grind/ground grow/grew/grown hang/hung have/had hear/heard hide/hid/hidden hit/hit
hold/held hurt/hurt keep/kept know/knew/known lay/laid lead/led leave/left lend/lent let/let lie/lay/lain light/lit
lose/lost make/made mean/meant meet/met mistake/mistook/mistaken overcome/overcame/overcome overthrow/overthrew/overthrown
pay/paid put/put quit/quit read/read ride/rode/ridden ring/rang/rung rise/rose/risen run/ran/run say/said see/saw/seen
seek/sought sell/sold send/sent set/set shake/shook/shaken shed/shed shine/shone shoot/shot show/showed/shown
shrink/shrank/shrunk shut/shut sing/sang/sung sink/sank/sunk sit/sat sleep/slept slide/slid speak/spoke/spoken
spend/spent spin/spun split/split spread/spread spring/sprang/sprung stand/stood steal/stole/stolen stick/stuck
sting/stung strike/struck/struck strive/strove/striven swear/swore/sworn sweep/swept swim/swam/swum swing/swung
take/took/taken teach/taught tear/tore/torn tell/told think/thought throw/threw/thrown understand/understood
undergo/underwent/undergone undertake/undertook/undertaken uphold/upheld wake/woke/woken wear/wore/worn
weave/wove/woven win/won wind/wound withdraw/withdrew/withdrawn withstand/withstood write/wrote/written
foresee/foresaw/foreseen outgrow/outgrew/outgrown rebuild/rebuilt remake/remade retake/retook/retaken
sew/sewed/sewn sow/sowed/sown prove/proved/proven bear/bore/born
"""
# of these, the base is often a noun or an adjective
DOUBTFUL_IRREGULAR = ("bet bid bite blow break broadcast burst cast catch cost cut deal drink drive fall feed fight "
                      "fly hit hold lead leave lie light mean read ride ring rise run set shoot show shut sleep slide "
                      "spin split spread spring stand stick sting strike swing wear wind quit light hurt set show beat").split()
PLAIN_TABLE = """
abandon abolish absorb accept accommodate accompany accomplish accumulate accuse achieve acknowledge acquire act adapt add
address adhere adjust administer admire admit adopt advertise advise advocate affect afford agree allege allocate allow
alter amend analyse analyze announce annex anticipate apologize appear apply appoint appreciate approve argue arrange
arrest arrive ask assassinate assemble assert assess assign assist associate assume assure attach attain attempt attend
attract attribute avoid await ban banish baptize base beg behave believe belong bless bombard borrow bring bury
calculate cancel capture carry carve categorize cause cease celebrate change characterize charge chase cite claim classify
clean close collaborate collapse collect collide colonize combine commemorate commence commission commit communicate
compare compel compete compile complain complete compose comprise conceive concentrate conclude condemn conduct confer
confess confine confirm confiscate conform confront connect conquer consider consist constitute construct consume contain
contend continue contract contribute control convene convert convey convict convince cooperate coordinate correlate
correspond corrupt cover create criticize cross crown cultivate cure curtail damage date debut decide declare decline
decorate decrease dedicate deem defeat defend define delegate deliver demand demolish demonstrate deny depart depend
depict deploy depose deposit deprive derive descend describe desire destroy detain detect deter determine develop devise
devote dictate die differ diffuse digest diminish disagree disappear disband discourage discover discriminate discuss
dislike dismiss disperse display displace dispose dissolve distinguish distribute divert divide divorce dominate donate
dub earn educate elaborate elect elevate eliminate emerge emigrate emit emphasize employ empower enable enact encode
encounter encourage end enforce engage enhance enjoy enlarge enlist ensure enter entertain entitle equip eradicate erect
erode escape establish estimate evacuate evade evaluate evaporate evolve exceed exchange exclude execute exert exhibit
exist expand expel experience explain exploit explode explore export expose express extend extract face facilitate fail
feature ferment fill finance finish fit focus follow forge form formulate found fulfil fulfill function gain gather
generate govern grant guarantee guide halt handle happen harvest help hire honor host house hunt identify ignore
illustrate imagine immigrate impact implement imply import impose impress imprison improve include incorporate increase
indicate induce infect inflict influence inform inhabit inherit inhibit initiate inject injure innovate insert insist
inspire install instruct integrate intend interact interfere interpret intervene introduce invade invent invest
investigate invite involve isolate issue join judge justify kill label lack land last launch learn legalize legislate
liberate like limit link list live locate look love lower maintain manage manufacture march mark marry mature measure
mention merge migrate mine mix model modify motivate mount move multiply murder name need neglect negotiate note notice
nominate obey object oblige observe obtain occupy occur offer open operate oppose oppress order organise organize
originate oust oversee own paint participate pass perceive perform permit persecute persuade pioneer place plan plant
play plead point portray possess post postulate practice practise preach precede predict prefer prepare prescribe present
preserve preside prevent proclaim produce prohibit promise promote pronounce propose prosecute protect protest provide
provoke publish pull pump purchase push qualify question raise range rank ratify reach react realise realize rebel receive
recognise recognize recommend reconstruct record recover recruit reduce refer reflect reform refuse regain regard
register regulate reign reject relate release relinquish rely remain remember remind remove rename render renew renounce
repair repeal repeat replace report represent repress reproduce request require rescue research resemble resent reside
resign resist resolve respect respond rest restore restrict result resume retain retire retreat retrieve return reveal
revere revert revise revive revolt reward rob rotate rule sail sanction save score search secede secrete secure seem seize
select separate serve settle shape share ship shorten sign signal signify slow smell solve sort sound specialise specialize
specify sponsor stage star start state stay stem stimulate stop store strengthen stress stretch study subdue submit succeed
suffer suggest suit supervise supply support suppress surpass surrender surround survive suspect suspend sustain switch
symbolize synthesize target taste tax tend term terminate test threaten tie top total touch trace trade train transcribe
transfer transform translate transmit transport travel treat trigger triumph try turn unify unite urge use utilise utilize
vacate value vanish vary veto view violate visit vote wage wait walk want warn wash watch water weaken weigh welcome widen
wish witness work worry worship yield air adapt agree aim answer appeal approach assault attack award back balance bar
battle benefit bill blame board bomb bond book boost bother bounce branch breathe burn call camp cast centre challenge
chart check claim climb coach color combat comment compromise concern conflict contest contrast cook cool copy count couple
crash credit cry cycle damage dance dare debate delay design desert detail devote dine direct disguise divide doubt dream
dress drop dry ease edit effect embrace encompass endure envision equal estimate exercise exile experiment explain fade favor
fear fear feud field file film filter fire fix flag flow flourish force frame free fund gamble graduate guard harm head heal heat
hope hurry ignite illuminate implicate interest interview jump kick knock lament lap lease level license lift
line load lobby lock log loot man map market master match matter mass mate mobilize monitor motion narrate nickname number
orbit outlaw outnumber overlap pack park partner perish phase phrase pick pilot plot plunge poison police pose pour power
praise pray press price prize process profit program progress project purge quote race raid rate recall reappear
reconsider refine reinforce rename rent reopen repay resettle reserve resort review ring risk roll root round row ruin rush
sack sample scale scan scatter schedule screen seat section sense sentence set shelter shift shock shout side sit skip slip smoke
snow space spark split spoil spot square stain stamp steer step stereotype store storm strain stream strip structure struggle
subject substitute sue sum surface surge survey suspect talk tap team tempt thank tour track transition trap travel treat trick trip
trust undermine update upgrade vary venture voice volunteer warm waste wave wrap wonder zone age admit access digest dock
double exert found ally ascend attest bathe bottle bow breach brush cater cheer chop cite clash coin colonise
compliment compute condense confuse conserve console construe copyright couple crawl criticise crush customize debate
decay dedicate deduce degrade demote denounce denote deport designate detonate diagnose differentiate dine discard disclose
disintegrate dispatch dispute disrupt dissent distort disturb drain drift drown echo eject embark embed endorse enrich enroll
enslave envisage exacerbate exaggerate exempt exhaust expire fascinate flood forecast foster fuel fuse glow grab greet guess
hatch haul hesitate hinder hug immerse impair impeach incite incur infer infiltrate inquire inspect intercept
interrupt invoke jeopardize kidnap knit lean leap lessen linger loan manipulate minimize nationalize neutralize
obstruct overrule overwhelm oxidize patent penetrate persist plead pledge plummet pollinate ponder populate postpone
prevail prolong propel prosper protrude publicize punish pursue rally react reassure rebound reclaim reconcile recur
redirect refill refrain regress reinstate rejoin relax relieve relocate remark reorganize replicate repel
reside retaliate reunite reuse revolve ridicule rival sacrifice scare sculpt settle signify simplify simulate slaughter
smuggle soar solidify spawn spell stabilize stare starve strangle stroll subscribe suck summarize summon swallow
tackle terrorize testify tolerate torture transcend trigger unveil uphold vibrate wander whisper wipe withhold
equate highlight spearhead underscore pinpoint predate mirror expect resonate engulf reformulate boast opine straddle confuse summarise specialise abide allude amass appease 
ascertain astonish avenge baffle bemoan besiege betray blockade broker champion chronicle coerce comprehend constrain 
corroborate covet cripple culminate decipher decree delineate despise devour differentiate downplay dwarf embody 
enumerate evict exalt excommunicate exonerate extinguish forgo fortify gravitate hamper immortalize induct inhale 
inscribe insinuate inundate iterate lecture lobby massacre muster nail negate offset orchestrate oversee pardon pertain 
plunder portend precipitate presume privatize procure quell rebuke recite reckon recount refuel relish renounce repeal 
replenish resemble retort rouse salvage scorn secede shun solicit squander subjugate subvert supersede surmise tally teem 
transpose traverse unearth unleash unseat usher usurp utter vie vilify waive ward accelerate acclaim accord acquit activate adjourn aid amount apprehend arm arouse ascribe aspire authorize automate
bankrupt bestow blend block boycott brand broaden browse cap captain celebrate certify circulate clarify coexist coincide
compensate complement concede condone conjugate consecrate consolidate contaminate contemplate contradict correct
counter crack curb deem defect defer deliver delve depreciate desegregate deteriorate dethrone deviate disapprove
disallow discontinue disregard dissipate diversify dwell elicit elongate emulate enclose encroach endow energize entail
envelop excavate excel excite exclaim excrete fabricate finalize flank flatten float fluctuate fold formalize fragment fray
gallop gauge grasp graze halve hail harass harbor harness hasten herd hone hover humiliate hydrate hypothesize idealize
imitate incline incubate inflate ingest instigate institute insulate insult interconnect intersect invert
join lobby magnify mandate mediate merit mimic modernize mourn narrow navigate nest notify oscillate outperform overlook
overturn partition peak pertain petition plague polish pollute position premiere pressure probe proceed procure project
propagate ransack ravage reap refute regenerate reiterate rejuvenate rekindle relay relegate repatriate resurrect
revoke rework safeguard scrap sever shorten sink skate span speculate spur stipulate streamline subsidize supplement
sway symbolise teleport televise thrive topple transpire traverse uncover underlie unlock uproot vaccinate withdraw
"""
# of those above, words met as a noun or an adjective at least as often
DOUBTFUL = set("""
act address ally advocate appeal approach arrest assault attack attempt attribute award back balance ban bar base battle benefit
bill blame board bomb bond book boost bottle bounce bow branch breach brush camp cap captain cause centre challenge change
charge chart check claim clash clean climb close coach coin color combat comment commission compliment compromise concern
conduct conflict contest contract contrast control cook cool copy copyright correct couple counter cover crack crash credit
cross crown cry cure cycle damage dance date debate debut decay decline decrease defeat defect delay delegate demand
deposit desert design desire detail digest direct display dispute dock double doubt drain dream dress drift drop dry ease echo effect
elaborate end equal estimate exchange exempt exercise exhibit exile experience experiment export express extract face fear feature
field file film filter finance fire fit fix flag float flood flow focus fold force forecast form found fragment frame free fuel function
fund fuse gain gamble gauge grant graduate guarantee guard guide halt handle harbor harm harvest head heat help herd hire
honor hope host house hunt hurt impact import increase influence initiate institute insult interest interview issue jump
judge kick kill knock label lack land lap last launch lease level license lift like limit line link list live load loan
lobby lock log look love lower man mandate map march mark market mass master match mate matter mature measure merit
mention mimic mine model monitor moderate motion mount move murder name narrow need nest nickname note notice number object offer open
orbit order own pack paint park partner partition pass patent peak permit petition phase phrase pick pilot pioneer place plague
plan plant play pledge plot point poison police polish pose position post power practice praise premiere present press pressure price
prize probe process produce profit program progress project promise protest pull pump purchase purge push question quote race
raid rally range rank rate reach rebel recall record reform register regard regress reign release relay remark rent repair
report request rescue research reserve resort respect rest result retreat return reverse review revolt reward ring risk rival
roll root round row ruin rule rush sack sacrifice sail sample sanction save scale scan scare schedule score scrap screen search
seat secure section sense sentence separate shape share shelter shift ship shock shout side sign signal skate slaughter slip slow
smell smoke snow sort sound space span spark spell sponsor spot spur square stage stain stamp star start state stay stem step
stereotype store storm strain stream stress stretch strip structure struggle study subject substitute suit sum supplement
supply support surface surge surrender survey suspect sway switch tackle talk tap target taste tax team term test tie top torture
total touch tour trace track trade train transfer transition transport trap travel treat trick trigger trip triumph trust try turn
update upgrade use value venture veto view visit voice volunteer vote wage wait walk want warm wash waste watch water wave
welcome wish witness wonder work worry worship wrap yield zone age air aim answer aid accord access amount arm block boycott brand
blend call count
""".split()) - {"help", "kill", "want", "save"}
DOUBLED = set("admit commit compel confer control deter emit equip expel infer kidnap occur omit permit prefer program "
              "propel rebel recur refer regret repel submit transfer transmit".split())
VOWELS = "aeiou"


def _irregular() -> dict[str, tuple[str, str]]:
    table = {}
    for entry in IRREGULAR_TABLE.split():
        base, past, *participle = entry.split("/")
        table.setdefault(base, (past, participle[0] if participle else past))
    return table


IRREGULAR = _irregular()
BASES = set(IRREGULAR) | set(PLAIN_TABLE.split())
DOUBTFUL |= set(DOUBTFUL_IRREGULAR)
IRREGULAR_PASTS = {past: base for base, (past, _) in IRREGULAR.items()}
IRREGULAR_PARTICIPLES = {participle: base for base, (_, participle) in IRREGULAR.items()} | {"born": "bear",
                                                                                           "got": "get"}


def past(base: str) -> str:
    """The simple past of a base form."""
    return IRREGULAR[base][0] if base in IRREGULAR else _regular(base)


def third_person(base: str) -> str:
    """he, she, it + the base form."""
    if base in ("have", "do", "go", "be"):
        return {"have": "has", "do": "does", "go": "goes", "be": "is"}[base]
    if base.endswith(("s", "x", "z", "ch", "sh")):
        return base + "es"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ies"
    return base + "s"


def _regular(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ied"
    return base + (base[-1] if _doubles(base) else "") + "ed"


def _doubles(base: str) -> bool:
    """Whether the last consonant doubles: one short syllable, or a listed verb."""
    if len(base) < 3:
        return False
    syllable = sum(letter in VOWELS for letter in base) == 1
    closed = base[-1] not in VOWELS + "wxy" and base[-2] in VOWELS and base[-3] not in VOWELS
    return base in DOUBLED or (syllable and closed)


PASTS = {past(base): base for base in BASES}
THIRDS = {third_person(base): base for base in BASES}


def is_base(word: str) -> bool:
    return word in BASES


def is_plain(base: str) -> bool:
    """A base form that is hardly ever another kind of word."""
    return base in BASES and base not in DOUBTFUL


def is_past(word: str) -> bool:
    return word in PASTS and word not in NO_PAST or (word.endswith("ed") and len(word) > 4 and word not in NO_PAST)


def is_participle(word: str) -> bool:
    return word in IRREGULAR_PARTICIPLES or (word not in IRREGULAR_PASTS and is_past(word))


def is_third(word: str) -> bool:
    return word in THIRDS


def is_gerund(word: str) -> bool:
    return word.endswith("ing") and len(word) > 4 and word not in NO_GERUND


# participles that are met inside noun phrases more than as a mistaken base form
PLURAL_LIKE = {"used", "called", "named", "based", "born", "made", "known", "led", "held", "left", "found", "united"}
NO_PAST = {"ground", "wound", "hundred", "indeed", "speed", "breed", "exceed", "proceed", "succeed", "united", "embed", "sacred",
           "bleed",
           "naked", "unprecedented", "so-called"}
NO_GERUND = {"king", "thing", "ring", "spring", "string", "during", "building", "morning", "evening", "meaning", "wing",
             "something", "anything", "everything", "nothing", "according", "beijing", "painting", "ceiling", "being",
             "viking", "sterling", "setting", "wedding", "boeing", "following", "including", "training", "teaching"}
